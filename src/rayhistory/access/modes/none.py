"""`--auth=none`: every visitor may see everything."""

from starlette.requests import HTTPConnection

from rayhistory.access.visitor import Visitor

ANONYMOUS = Visitor("anonymous")


class OpenAccess:
    takes_tokens = False

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        return ANONYMOUS

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return True
