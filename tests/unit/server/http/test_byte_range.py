"""Range requests."""

import pytest
from starlette.requests import Request

from rayhistory.errors import RangeNotSatisfiable
from rayhistory.server.http.byte_range import parse_range


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=2-", (2, 10)),
        ("bytes=2-99", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes = 2 - 4", (2, 5)),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("", None),
    ],
)
def test_range_is_parsed(header: str, expected: tuple[int, int] | None) -> None:
    assert parse_range(request(range=header), 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_range_outside_of_the_content_is_refused(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range(request(range=header), 10)


def test_if_range_gets_the_whole_content() -> None:
    assert parse_range(request(range="bytes=2-4", if_range='"1"'), 10) is None
