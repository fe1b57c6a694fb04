"""Ray's log API: the log files of a node, and their content. Errors are plain text, as in Ray."""

import asyncio
import math
import re
from urllib.parse import quote

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from rayhistory.errors import LogNotFound, RangeNotSatisfiable, UsageError
from rayhistory.logs.source import LogSource, start_of_last_lines
from rayhistory.server.http.byte_range import parse_range, range_headers
from rayhistory.server.http.error_responses import error_headers
from rayhistory.server.http.ray_proxy import is_kuberay_request
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.responses import rest_failure, rest_response, text_response
from rayhistory.server.http.streaming import empty_body, prefetch_first
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.logs.follow import follow, session_has_ended
from rayhistory.server.logs.kuberay_logs import (
    check_log_query,
    file_of_attempt,
    log_error_status,
    names_in_folder,
    unquoted_attachment,
)
from rayhistory.server.logs.listing import group_logs
from rayhistory.server.logs.locate import ERR, OUT, LogQuery, LogRange, check_node, find_log, node_by_ip
from rayhistory.server.logs.stream import read_range, split_at_characters
from rayhistory.server.view import SessionView

_DEFAULT_LINES = 1000
_MIN_INTERVAL_S = 0.2


async def list_logs(request: Request, view: SessionView) -> Response:
    query = request.query_params
    node_id, node_ip = query.get("node_id"), query.get("node_ip")
    if not node_id and not node_ip:
        return rest_failure("Both node id and node ip are not provided. Please provide at least one of them.", 400)
    node_id = node_id or await node_by_ip(view, node_ip or "")
    if not node_id:
        return rest_failure(f"Cannot find matching node_id for a given node ip {node_ip}", 404)
    glob, kuberay = query.get("glob", "*"), is_kuberay_request(request)
    try:
        files = await view.logs.files(await check_node(view, node_id))
        groups = await asyncio.to_thread(group_logs, [file.path for file in files], glob)
    except (LogNotFound, UsageError) as error:
        if kuberay and isinstance(error, LogNotFound):
            return rest_response("", {"result": {}})
        return rest_failure(str(error), error.http_status if kuberay else 500, error_headers(error))
    if kuberay and not is_browser(request):  # Ray's frontend makes links from the names
        groups = names_in_folder(groups, glob)
    return rest_response("", {"result": groups})


async def get_log(request: Request, view: SessionView) -> Response:
    query, kuberay = request.query_params, is_kuberay_request(request)
    download_filename = query.get("download_filename") or "file.txt"
    headers = {
        "Content-Type": "text/plain",
        "Content-Disposition": (unquoted_attachment(download_filename) if kuberay else None)
        or _attachment(download_filename),
        "X-Content-Type-Options": "nosniff",
    }
    try:
        if kuberay and request.path_params["media_type"] == "file":
            await check_log_query(view, query)
        lines, interval = _parse_int(query, "lines", _DEFAULT_LINES), _parse_interval(query)
        log_query = await _parse_log_query(request, view)
        if kuberay:
            log_query = msgspec.structs.replace(log_query, filename=file_of_attempt(query))
        log_range = await find_log(view, log_query)
        start = await _first_byte(view.logs, log_range, lines or _DEFAULT_LINES)
        log_range = msgspec.structs.replace(log_range, start=start)
        ansi = query.get("filter_ansi_code", "").lower() != "true"
        if request.path_params["media_type"] == "stream":
            chunks = follow(view.logs, log_range, lambda: session_has_ended(request, view.ref), interval)
        elif ansi:
            return await _file_response(request, view.logs, log_range, headers)
        else:
            chunks = read_range(view.logs, log_range)
        if request.method == "HEAD":
            return StreamingResponse(empty_body(), 200, headers)
        return StreamingResponse(await prefetch_first(split_at_characters(chunks, ansi=ansi)), 200, headers)
    except (LogNotFound, UsageError) as error:
        status = await log_error_status(view, query, error) if kuberay else 500
        return text_response(str(error), status, error_headers(error))


async def _file_response(request: Request, logs: LogSource, log_range: LogRange, headers: dict[str, str]) -> Response:
    """Return the bytes of a file unchanged, or the requested byte range.

    The whole file is sent without Content-Length. Ray's client decodes each chunk separately, and only without a length
    does it receive the chunks as they are sent here: they never split a character.
    """
    size, headers = log_range.end - log_range.start, {**headers, "Accept-Ranges": "bytes"}
    try:
        part = parse_range(request, size)
    except RangeNotSatisfiable:
        return Response(status_code=416, headers={"Accept-Ranges": "bytes", "Content-Range": f"bytes */{size}"})
    status = 200
    if part:
        status, headers = 206, headers | range_headers(*part, size)
        log_range = msgspec.structs.replace(log_range, start=log_range.start + part[0], end=log_range.start + part[1])
    if request.method == "HEAD":
        return Response(status_code=status, headers={"Content-Length": str(size), **headers})
    return StreamingResponse(
        await prefetch_first(split_at_characters(read_range(logs, log_range), ansi=True)), status, headers
    )


async def _parse_log_query(request: Request, view: SessionView) -> LogQuery:
    query, media_type = request.query_params, request.path_params["media_type"]
    node_id, node_ip, suffix = query.get("node_id"), query.get("node_ip"), query.get("suffix", OUT)
    named = [query.get(name) for name in ("actor_id", "task_id", "pid", "filename", "submission_id")]
    if media_type not in ("file", "stream"):
        raise UsageError(f"Invalid media type: {media_type}")
    if media_type == "file" and query.get("interval"):
        raise UsageError("interval is given for a file. It is only for a stream.")
    if not any(named):
        raise UsageError(
            "None of actor_id, task_id, pid, submission_id or filename is provided. "
            "At least one of them is required to fetch logs."
        )
    if node_id and node_ip:
        raise UsageError(
            "Both node_id and node_ip are given. Only one of them can be provided. "
            f"Given node id: {node_id}, given node ip: {node_ip}"
        )
    if not (node_id or node_ip or query.get("actor_id") or query.get("task_id")):
        raise UsageError(  # Ray's own text
            "node_id or node_ip must be provided as constructor arguments when no actor or task_id is supplied as "
            "arguments."
        )
    if suffix not in (OUT, ERR):
        raise UsageError(f"Invalid suffix: {suffix}. Must be one of 'out' or 'err'.")
    return LogQuery(
        node_id or (await node_by_ip(view, node_ip) if node_ip else None),
        query.get("actor_id"),
        _parse_int(query, "incarnation", 0) if query.get("incarnation") else None,
        query.get("task_id"),
        _parse_int(query, "attempt_number", 0) if "attempt_number" in query else None,
        query.get("submission_id"),
        _parse_int(query, "pid", 0) if query.get("pid") else None,
        query.get("filename"),
        suffix,
    )


def _parse_int(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {text!r}") from None


def _parse_interval(query: QueryParams) -> float:
    text = query.get("interval") or "1"
    try:
        interval = float(text)
    except ValueError:
        interval = math.nan
    if not 0 <= interval < math.inf:
        raise UsageError(f"interval must be a number of seconds, 0 or more, not {text!r}")
    return max(interval, _MIN_INTERVAL_S)


async def _first_byte(logs: LogSource, log_range: LogRange, lines: int) -> int:
    if lines < 0:
        return log_range.start
    return await start_of_last_lines(logs, log_range.node, log_range.path, log_range.end, lines, start=log_range.start)


def _attachment(name: str) -> str:
    plain = re.sub(r'[^ -~]|["\\]', "_", name)
    return f'attachment; filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}")


ROUTES: list[BaseRoute] = [
    view_route("/api/v0/logs", list_logs, cache=False),
    view_route("/api/v0/logs/{media_type}", get_log, cache=False),
]
