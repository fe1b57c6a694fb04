"""The ways of knowing visitors that need nobody else: all are welcome, tokens of ours, and headers of a proxy."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import HTTPConnection

from rayhistory.access.kubernetes import KubernetesAccess
from rayhistory.access.rules import RulesFile
from rayhistory.access.visitor import INVALID, Access, Visitor, matches, needed_token
from rayhistory.errors import Misconfigured, NotSignedIn
from rayhistory.kubeapi import KubeApi
from rayhistory.settings import Settings

ANYBODY = Visitor("anybody")
_MOST_GROUPS = 1000


class OpenAccess:
    """Everybody sees everything."""

    takes_tokens = False

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        return ANYBODY

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return True


class TokenAccess:
    """Tokens that the rules list, each with its namespaces."""

    takes_tokens = True

    def __init__(self, rules: RulesFile) -> None:
        self._rules = rules

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        visitor = self._rules.rules().of_token(needed_token(connection))
        if visitor is None:
            raise NotSignedIn(INVALID, wrong=True)
        return visitor

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return matches(namespace, visitor.namespaces)


class ProxyAccess:
    """A proxy in front has signed the visitor in, and says so in headers, which count from its address alone."""

    takes_tokens = False

    def __init__(self, rules: RulesFile, proxies: "Proxies", user_header: str, groups_header: str) -> None:
        self._rules = rules
        self._proxies = proxies
        self._user_header = user_header
        self._groups_header = groups_header

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        if not self._proxies.trusts(connection):
            raise NotSignedIn("Unauthorized: only the proxy that signs visitors in is answered here")
        names = connection.headers.getlist(self._user_header)
        if len(names) != 1 or not names[0].strip():
            raise NotSignedIn("Unauthorized: the proxy does not say who this is")
        said = connection.headers.getlist(self._groups_header)
        groups = [group.strip() for line in said for group in line.split(",") if group.strip()]
        return self._rules.rules().of_user(names[0].strip(), tuple(groups[:_MOST_GROUPS]))

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return matches(namespace, visitor.namespaces)


class Proxies:
    """Whose word about others is believed."""

    def __init__(self, addresses: Iterable[str]) -> None:
        try:
            self._networks = [ipaddress.ip_network(address, strict=False) for address in addresses]
        except ValueError as error:
            raise Misconfigured(f"--trusted-proxies: {error}") from None

    def trusts(self, connection: HTTPConnection) -> bool:
        return bool(connection.client) and self._holds(connection.client.host)  # type: ignore[union-attr]

    def _holds(self, address: str) -> bool:
        try:
            peer = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(peer, "ipv4_mapped", None)
        return any((mapped or peer) in network for network in self._networks)

    def address_of(self, connection: HTTPConnection) -> str:
        """Where a request comes from: behind proxies that are trusted, the first address that is not one of them."""
        address = connection.client.host if connection.client else ""
        if self.trusts(connection):
            for hop in reversed(",".join(connection.headers.getlist("x-forwarded-for")).split(",")):
                if not hop.strip():
                    break
                address = hop.strip()[:64]
                if not self._holds(address):
                    break
        return address

    def is_secure(self, connection: HTTPConnection) -> bool:
        """Whether the visitor's own connection is encrypted."""
        said = connection.headers.get("x-forwarded-proto", "") if self.trusts(connection) else ""
        first = said.partition(",")[0].strip().lower()
        return (first or connection.url.scheme) in ("https", "wss")


def open_access(settings: Settings, kubernetes: KubeApi | None) -> Access:
    if settings.auth == "token":
        return TokenAccess(_rules(settings))
    if settings.auth == "proxy":
        if not settings.trusted_proxies:
            raise Misconfigured("--auth=proxy needs --trusted-proxies: the addresses from which its headers count")
        proxies = Proxies(settings.trusted_proxies)
        return ProxyAccess(_rules(settings), proxies, settings.user_header, settings.groups_header)
    if settings.auth == "kubernetes":
        if kubernetes is None:
            raise Misconfigured("--auth=kubernetes needs Kubernetes: run in a pod, or name a file with --kubeconfigs")
        return KubernetesAccess(kubernetes, settings.auth_audiences)
    return OpenAccess()


def _rules(settings: Settings) -> RulesFile:
    if not settings.access_file:
        raise Misconfigured(f"--auth={settings.auth} needs --access-file: who may see which namespaces")
    return RulesFile(Path(settings.access_file).expanduser())
