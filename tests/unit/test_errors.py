"""Every error has a unique code, an HTTP status and its place in the drawing of the tree."""

import re
from collections.abc import Iterator

from rayhistory import errors
from rayhistory.errors import RayHistoryError


def error_classes(root: type[RayHistoryError] = RayHistoryError) -> Iterator[type[RayHistoryError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from error_classes(child)


def test_each_error_has_its_own_code() -> None:
    codes = [error.code for error in error_classes()]
    assert len(codes) == len(set(codes)) > 20
    assert all("code" in vars(error) for error in error_classes())
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", code) for code in codes)


def test_each_error_has_an_http_status() -> None:
    assert all(400 <= error.http_status < 600 for error in error_classes())


def test_the_drawing_shows_the_tree() -> None:
    drawn = []
    for line in (errors.__doc__ or "").splitlines():
        entry = re.match(r"([│ ├└─]*)([A-Z]\w+)(?=$| )", line)
        if entry and (entry[1] or entry[2] == RayHistoryError.__name__):
            drawn.append((len(entry[1]) // 4, entry[2]))

    def walk(error: type[RayHistoryError], depth: int) -> Iterator[tuple[int, str]]:
        yield depth, error.__name__
        for child in error.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from walk(child, depth + 1)

    assert drawn == list(walk(RayHistoryError, 0))
