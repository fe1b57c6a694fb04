"""HTTP range requests."""

import re

from starlette.requests import Request

from rayhistory.errors import RangeNotSatisfiable

_SINGLE_RANGE = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})")


def parse_range(request: Request, size: int) -> tuple[int, int] | None:
    """Return the requested bytes as [start, end), or None for all.

    Several ranges, invalid ranges, and requests with `If-Range` get the whole content, as the standard allows. A log
    has no version that `If-Range` could be compared with.
    """
    header = _SINGLE_RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    if header is None or "if-range" in request.headers or not (header["first"] or header["last"]):
        return None
    if header["first"]:
        start, last = int(header["first"]), int(header["last"] or size - 1)
        if header["last"] and last < start:
            return None
        end = min(size, last + 1)
    else:
        start, end = max(0, size - int(header["last"])), size
    if start >= size:
        raise RangeNotSatisfiable(f"byte range starts at {start}, but the content has {size} bytes")
    return start, end


def range_headers(start: int, end: int, size: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
