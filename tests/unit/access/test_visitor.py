"""The token of a request is taken from its headers and cookie, and refused if no token can look like that."""

import pytest
from starlette.requests import HTTPConnection

from rayhistory.access.visitor import token_of
from rayhistory.errors import InvalidToken


def connection(**headers: str) -> HTTPConnection:
    encoded = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": encoded})


def test_header_of_ray_is_read_before_the_cookie() -> None:
    assert token_of(connection(authorization="Basic abc", x_ray_authorization="bearer one")) == "one"
    assert token_of(connection(x_ray_authorization="Bearer one", cookie="rayhistory-token=two")) == "one"
    assert token_of(connection(cookie="rayhistory-token=two%20three")) == "two three"
    assert token_of(connection()) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer " + "a" * (16 * 1024 + 1)},
        {"authorization": "Bearer t\xf6ken"},
        {"authorization": "Bearer a\x1bb"},
        {"cookie": "rayhistory-token=a%0ab"},
    ],
    ids=["too long", "not ASCII", "control character", "line break in the cookie"],
)
def test_text_that_is_no_token_is_refused(headers: dict[str, str]) -> None:
    """It would otherwise reach logs, or the headers of requests to Kubernetes."""
    with pytest.raises(InvalidToken):
        token_of(connection(**headers))
