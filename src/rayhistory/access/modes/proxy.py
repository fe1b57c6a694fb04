"""`--auth=proxy`: a reverse proxy authenticates visitors and sends their names in request headers.

The headers count only in requests from `--trusted-proxies`, and only with the secret `--proxy-secret` if it is set.
"""

import hmac

from starlette.requests import HTTPConnection

from rayhistory.access.rules_file import RulesFile
from rayhistory.access.trusted_proxies import TrustedProxies
from rayhistory.access.visitor import Visitor, namespace_matches
from rayhistory.errors import NotSignedIn

SECRET_HEADER = "X-Rayhistory-Proxy-Secret"  # noqa: S105
_MAX_GROUPS = 1000


class ProxyAccess:
    takes_tokens = False

    def __init__(
        self, rules: RulesFile, proxies: TrustedProxies, user_header: str, groups_header: str, secret: str = ""
    ) -> None:
        self._rules = rules
        self._proxies = proxies
        self._user_header = user_header
        self._groups_header = groups_header
        self._secret = secret.encode()

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        if not self._proxies.trusts(connection) or not self._has_secret(connection):
            raise NotSignedIn(
                "Unauthorized: the request did not come from a trusted proxy. Open the proxy's URL instead"
            )
        names = connection.headers.getlist(self._user_header)
        if len(names) != 1 or not names[0].strip():
            raise NotSignedIn(f"Unauthorized: the proxy sent no {self._user_header} header")
        lines = connection.headers.getlist(self._groups_header)
        groups = [group.strip() for line in lines for group in line.split(",") if group.strip()]
        return self._rules.rules().of_user(names[0].strip(), tuple(groups[:_MAX_GROUPS]))

    def _has_secret(self, connection: HTTPConnection) -> bool:
        sent = connection.headers.getlist(SECRET_HEADER)
        return not self._secret or (len(sent) == 1 and hmac.compare_digest(sent[0].encode(), self._secret))

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return namespace_matches(namespace, visitor.namespaces)
