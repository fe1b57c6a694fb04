"""Range requests: one part of an answer's bytes, by its place."""

import re

from starlette.requests import Request

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class NoSuchRange(Exception):
    """Nothing of what is there was asked for."""


def asked_range(request: Request, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last; None for everything.

    Several ranges at once, and what cannot be read as one, are answered with everything, as the standard allows. So is
    `If-Range`: a log has no version to compare with.
    """
    given = _RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    if given is None or "if-range" in request.headers or given[0] == "bytes=-":
        return None
    if not given[1]:
        start, end = max(0, size - int(given[2])), size
    else:
        start, end = int(given[1]), min(size, int(given[2]) + 1) if given[2] else size
        if given[2] and int(given[2]) < start:
            return None
    if start >= size:
        raise NoSuchRange
    return start, end


def range_headers(start: int, end: int, size: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
