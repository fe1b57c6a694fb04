"""Fuzz targets: URLs, cookies, queries and ranges of requests."""

from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from starlette.datastructures import QueryParams
from starlette.requests import Request

from fuzz.target import REF, Target
from rayhistory.errors import RangeNotSatisfiable, RayHistoryError, UsageError
from rayhistory.index.query.query_params import parse_query
from rayhistory.server.history_api.session_filters import parse_session_filters
from rayhistory.server.http.byte_range import parse_range
from rayhistory.server.kuberay import cookie_headers
from rayhistory.server.logs.listing import group_logs
from rayhistory.server.logs.locate import relative_log_path
from rayhistory.sessions.selection import Selection, parse_session_path, selection_from_cookies
from rayhistory.storage.object_keys import checked_key


def urls(data: bytes) -> None:
    """Paths, cookies and queries of a decoded request are parsed, or refused with a usage error."""
    text = unquote_to_bytes(data).decode("utf-8", "replace")
    cookies = dict(zip(("cluster_name", "cluster_namespace", "session_name"), text.split("/"), strict=False))
    parsers: tuple[Callable[[], Selection | None], ...] = (
        lambda: parse_session_path(text)[0],
        lambda: selection_from_cookies(cookies),
    )
    for parse in parsers:
        try:
            selection = parse()
        except RayHistoryError:
            continue
        if selection is not None:
            checked_key(f"{selection.namespace}/{selection.name}/{selection.session}")
    assert b"\r" not in b"".join(value for _, value in cookie_headers(cookies))
    params = QueryParams(data)
    try:
        parse_session_filters(params)
        options = {name: params.get(name, "") for name in ("columns", "sort", "cursor")}
        parse_query(
            params.get("table", "tasks"), where=params.getlist("where"), limit=params.get("limit", "1"), **options
        )
    except UsageError:
        pass


def _url_seeds() -> list[bytes]:
    return [
        f"default/sample/{REF.session}/api/v0/tasks".encode(), b"ns/~rayjob/nightly/latest/",
        b"ns/c/latest@1794770300000/",
        b"ns/c/latest@2026-11-15T19:20:00+01:00/x", b"ns/c/latest@0001-01-01T00:00:00+23:59/",
        b"q=a&state=ended&owner=rayjob/x&since=7d&from=2026-11-15&to=9999-12-31&sort=-started&page=2",
        b"table=tasks&columns=name,state&where=state=FAILED&where=name~x&sort=-start_time_ms&limit=9&cursor=W1td",
    ]  # fmt: skip


def log_requests(data: bytes) -> None:
    """A parsed range lies within the file, and a glob matches only listed files."""
    text = data.decode("latin-1")
    for size in (0, 1, 1000, 2**40):
        request = Request({"type": "http", "headers": [(b"range", data)], "query_string": b""})
        try:
            found = parse_range(request, size)
        except RangeNotSatisfiable:
            continue
        assert found is None or 0 <= found[0] < found[1] <= size
    paths = ["a.log", "old/b.out", "deep/er/c.err"]
    try:
        groups = group_logs(paths, text)
    except UsageError:
        groups = {}
    listed = {*paths, "old/", "deep/", "deep/er/"}
    assert {name for names in groups.values() for name in names} <= listed
    relative_log_path(text)


def _log_request_seeds() -> list[bytes]:
    return [b"bytes=0-499", b"bytes=-5", b"bytes=5-", b"bytes=1-2,3-4", b"bytes= 7 - 9", b"**", b"old/*", b"[a-z]*.log",
            b"/tmp/ray/session_x/logs/a.log", b"../../a", b"bytes=99999999999999999999-1"]  # fmt: skip


TARGETS = {
    "urls": Target(urls, _url_seeds),
    "log-requests": Target(log_requests, _log_request_seeds),
}
