"""`--auth=token`: tokens listed in the access file, each with its namespaces."""

from starlette.requests import HTTPConnection

from rayhistory.access.rules_file import RulesFile
from rayhistory.access.visitor import INVALID, Visitor, namespace_matches, required_token
from rayhistory.errors import InvalidToken


class TokenAccess:
    takes_tokens = True

    def __init__(self, rules: RulesFile) -> None:
        self._rules = rules

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        visitor = self._rules.rules().of_token(required_token(connection))
        if visitor is None:
            raise InvalidToken(INVALID)
        return visitor

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return namespace_matches(namespace, visitor.namespaces)
