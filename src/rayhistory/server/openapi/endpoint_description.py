"""The description of one endpoint, and of its parameters."""

from typing import Any

import msgspec


class Endpoint(msgspec.Struct, frozen=True):
    summary: str
    responses: tuple[type, ...]
    """Possible types of the response body: several if it depends on parameters, none if another standard defines it."""
    parameters: tuple[dict[str, Any], ...] = ()
    operation: str = ""
    """The `operationId`, if it differs from the first word of the path."""

    body: type | None = None
    """The JSON body of a POST. Without one, the endpoint takes GET."""

    media_type: str = ""
    """The media type of a body that is not JSON."""

    @property
    def method(self) -> str:
        return "post" if self.body else "get"


def query(name: str, text: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": {"type": "string", **schema}}


def ms(name: str, text: str) -> dict[str, Any]:
    return query(name, text, type="integer", minimum=0, maximum=2**53)
