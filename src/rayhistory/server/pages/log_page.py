"""The log viewer: a window of a log file of any size, by line, offset, time or from the end."""

import re
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import __version__, web
from rayhistory.errors import RayHistoryError, SessionNotIndexed, UsageError
from rayhistory.logs.source import LogSource, StoredLogFile, find_file
from rayhistory.search.env_var_mask import masked_line
from rayhistory.search.log_window import (
    LINES_ABOVE,
    LineBreaks,
    LogWindow,
    Position,
    WindowLine,
    find_end,
    find_line,
    find_time,
    number_position,
    read_window,
)
from rayhistory.search.scan_plan import UNIT_BYTES
from rayhistory.server.history_api.session_listing import SessionListing
from rayhistory.server.http.message_page import error_page, page_response, progress_page
from rayhistory.server.http.view_routes import plain_route, resolver_of, selection_of, view_of, while_connected
from rayhistory.server.logs.line_owners import LineOwner, find_owners
from rayhistory.server.logs.locate import check_node
from rayhistory.server.pages.find_in_log import LogFind, find_form, find_in_log
from rayhistory.server.pages.frame_page import PAGE_TIMEOUT_S
from rayhistory.server.search_api.start_search import indexed_line_breaks
from rayhistory.server.view import SessionView
from rayhistory.sessions.catalog import RUNNING
from rayhistory.utc import parse_utc_ms
from rayhistory.web import LogLinks, LogPage, LogRow
from rayhistory.web.ansi import styled_texts
from rayhistory.web.log_models import BACK_PARAMETERS

_NUMBER = re.compile("[0-9]{1,15}")


async def log_page(request: Request) -> Response:
    """Show a window of a log file. A search in it is cancelled when the visitor leaves."""
    return await while_connected(request, _log_page(request))


async def _log_page(request: Request) -> Response:
    listing: SessionListing = request.app.state.session_listing
    try:
        entry = await resolver_of(request).entry(selection_of(request))
        view = await view_of(request, PAGE_TIMEOUT_S)
        row = await listing.row(entry)
        page = await _page(request, view)
    except SessionNotIndexed as progress:
        return progress_page(entry.ref, progress)
    except RayHistoryError as error:
        return error_page(error, request.scope)
    return page_response(web.render_log(row, page, version=__version__))


async def _page(request: Request, view: SessionView) -> LogPage:
    params = request.query_params
    node = await check_node(view, request.path_params["node"])
    file = await find_file(view.logs, node, request.path_params["path"])
    find = await find_in_log(request, view, node, file, params)
    is_long = file.size > 2 * UNIT_BYTES
    breaks = await indexed_line_breaks(request, view, (node, file.path)) if is_long else {}
    selected = await _selected(view.logs, node, file, params, found=find.offset, breaks=breaks)
    follow = params.get("follow") == "1" and view.state == RUNNING
    above = 0 if params.get("top") == "1" else LINES_ABOVE
    window = await read_window(view.logs, node, file, selected, above)
    owners = await find_owners(view, [(node, file.path, line.offset) for line in window.lines])
    base = f"{view.ref.url}logs/{quote(node, safe='')}/{quote(file.path)}"
    is_chosen = find.offset is not None or "line" in params or "offset" in params or "time" in params
    rows = [
        _row(
            base,
            line,
            owners.get((node, file.path, line.offset)),
            find,
            chosen=is_chosen and line.offset == selected.offset,
        )
        for line in window.lines
    ]
    links = _links(view, (node, file.path), window, base, params)
    wrap = params.get("wrap") == "1"
    form = find_form(find, params, base, selected.offset, f"{view.ref.url}search")
    return LogPage(node, file.path, window, rows, links, form, wrap, follow)


async def _selected(
    logs: LogSource, node: str, file: StoredLogFile, params: QueryParams, *, found: int | None, breaks: LineBreaks
) -> Position:
    line, offset = _number(params, "line"), _number(params, "offset")
    if found is not None:
        position = Position(found, None)
    elif offset is not None:
        position = Position(min(offset, file.size), line)
    elif line is not None:
        position = await find_line(logs, node, file, max(1, line), breaks)
    elif params.get("time"):
        try:
            position = await find_time(logs, node, file, parse_utc_ms(params["time"]))
        except ValueError:
            raise UsageError(f"invalid time {params['time']!r}: use ISO 8601, or milliseconds since 1970") from None
    elif params.get("end") == "1" or params.get("follow") == "1":
        position = await find_end(logs, node, file)
    else:
        return Position(0, 1)
    return await number_position(logs, node, file, position, breaks)


def _number(params: QueryParams, name: str) -> int | None:
    text = params.get(name)
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"invalid {name} {text!r}: use a number")
    return int(text)


def _row(base: str, line: WindowLine, owner: LineOwner | None, find: LogFind, *, chosen: bool) -> LogRow:
    anchor = f"L{line.number}" if line.number is not None else f"B{line.offset}"
    place = {"offset": line.offset} | ({"line": line.number} if line.number is not None else {})
    return LogRow(
        anchor=anchor, label=str(line.number if line.number is not None else line.offset),
        url=f"{base}?{urlencode(place)}#{anchor}", cut=line.cut,
        pieces=find.marked(styled_texts(masked_line(line.text)[0])), selected=chosen, owner=_owner_text(owner),
    )  # fmt: skip


def _owner_text(owner: LineOwner | None) -> str:
    if owner is None:
        return ""
    task = f"task {owner.task_id}, attempt {owner.attempt}" if owner.task_id else ""
    return ", ".join(filter(None, (task, f"actor {owner.actor_id}" if owner.actor_id else "")))


def _links(view: SessionView, place: tuple[str, str], window: LogWindow, base: str, params: QueryParams) -> LogLinks:
    node, path = place
    keep = {name: params[name] for name in ("wrap", "q", "regex", "case", "word", *BACK_PARAMETERS) if params.get(name)}

    def link(**place: str | int) -> str:
        return f"{base}?{urlencode({**place, **keep})}"

    first = window.lines[0] if window.lines else None
    last = window.lines[-1] if window.lines else None
    following = {"line": last.number + 1} if last and last.number is not None else {}
    download = urlencode({"node_id": node, "filename": path, "lines": -1, "download_filename": path.rpartition("/")[2]})
    others = {name: value for name, value in params.items() if name != "wrap"}
    if params.get("wrap") != "1":
        others["wrap"] = "1"
    follow = link(end=1) if params.get("follow") == "1" else link(follow=1)
    return LogLinks(
        start=link(offset=0, line=1, top=1), end=link(end=1), download=f"{view.ref.url}api/v0/logs/file?{download}",
        wrap=f"{base}?{urlencode(others)}",
        previous=link(offset=max(0, window.start - 128 * 1024), top=1) if first and window.start > 0 else None,
        next=link(offset=window.end, top=1, **following) if window.end < window.size else None,
        follow=follow if view.state == RUNNING else None,
        back=_back(view, params), kept=[(name, keep[name]) for name in BACK_PARAMETERS if name in keep],
    )  # fmt: skip


def _back(view: SessionView, params: QueryParams) -> str | None:
    """Return the URL of the search that led to the page. Only its query is taken from the URL."""
    if params.get("search_all"):
        return f"/search?{params['search_all']}"
    return f"{view.ref.url}search?{params['search']}" if params.get("search") else None


ROUTES: list[BaseRoute] = [plain_route("/logs/{node}/{path:path}", log_page, ("GET", "HEAD"))]
