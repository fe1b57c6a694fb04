"""Ray's log API: which files a node has, and what is in one of them. Mistakes are told in plain text, as Ray does."""

import asyncio
import math
import re
from urllib.parse import quote

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from rayhistory.errors import LogNotFound, UsageError
from rayhistory.layout import SessionRef
from rayhistory.server.answers import ray_error, rest_answer, text_answer
from rayhistory.server.byterange import NoSuchRange, asked_range, range_headers
from rayhistory.server.catalogue import RUNNING
from rayhistory.server.logfiles import Logs, start_of_last_lines
from rayhistory.server.logfind import ERR, OUT, Found, Wanted, find_log, known_node, node_of_ip
from rayhistory.server.logflow import begun, followed, nothing, pieces, whole_characters
from rayhistory.server.logglob import listed
from rayhistory.server.routing import get, resolver_of, selection_of
from rayhistory.server.view import SessionView

_DEFAULT_LINES = 1000
_SHORTEST_INTERVAL = 0.2


async def list_logs(request: Request, view: SessionView) -> Response:
    query = request.query_params
    node_id, node_ip = query.get("node_id"), query.get("node_ip")
    if not node_id and not node_ip:
        return ray_error("Both node id and node ip are not provided. Please provide at least one of them.", 400)
    node_id = node_id or await node_of_ip(view, node_ip or "")
    if not node_id:
        return ray_error(f"Cannot find matching node_id for a given node ip {node_ip}", 404)
    try:
        files = await view.logs.files(await known_node(view, node_id))
        groups = await asyncio.to_thread(listed, [file.path for file in files], query.get("glob", "*"))
    except (LogNotFound, UsageError) as error:
        return ray_error(str(error), 500)
    return rest_answer("", {"result": groups})


async def get_log(request: Request, view: SessionView) -> Response:
    query = request.query_params
    headers = {
        "Content-Type": "text/plain",
        "Content-Disposition": _attachment(query.get("download_filename") or "file.txt"),
        "X-Content-Type-Options": "nosniff",
    }
    try:
        lines, interval = _number(query, "lines", _DEFAULT_LINES), _interval(query)
        found = await find_log(view, await _wanted(request, view))
        start = await _start(view.logs, found, lines or _DEFAULT_LINES)
        found = msgspec.structs.replace(found, start=start)
        ansi = query.get("filter_ansi_code", "").lower() != "true"
        if request.path_params["media_type"] == "stream":
            blocks = followed(view.logs, found, lambda: session_is_over(request, view.ref), interval)
        elif ansi:
            return await _file(request, view.logs, found, headers)
        else:
            blocks = pieces(view.logs, found)
        if request.method == "HEAD":
            return StreamingResponse(nothing(), 200, headers)
        return StreamingResponse(await begun(whole_characters(blocks, ansi=ansi)), 200, headers)
    except (LogNotFound, UsageError) as error:
        return text_answer(str(error), 500)


async def _file(request: Request, logs: Logs, found: Found, headers: dict[str, str]) -> Response:
    """As it is, or the part of it that was asked for.

    The whole has no length, unless that is all that was asked for: Ray's client decodes piece by piece, and only what
    has no length arrives in our pieces.
    """
    size, headers = found.end - found.start, {**headers, "Accept-Ranges": "bytes"}
    try:
        part = asked_range(request, size)
    except NoSuchRange:
        return Response(status_code=416, headers={"Accept-Ranges": "bytes", "Content-Range": f"bytes */{size}"})
    status = 200
    if part:
        status, headers = 206, headers | range_headers(*part, size)
        found = msgspec.structs.replace(found, start=found.start + part[0], end=found.start + part[1])
    if request.method == "HEAD":
        return Response(status_code=status, headers={"Content-Length": str(size), **headers})
    return StreamingResponse(await begun(whole_characters(pieces(logs, found), ansi=True)), status, headers)


async def session_is_over(connection: HTTPConnection, ref: SessionRef) -> bool:
    """Whether nothing will be appended to its logs any more; nor is there more to see as of a moment.

    It is asked by its own name: what was the latest session when it was opened need not be that now.
    """
    if selection_of(connection).as_of_ms is not None:
        return True
    catalogue = resolver_of(connection).catalogue
    return catalogue.state(await catalogue.find(ref.namespace, ref.cluster, ref.session)) != RUNNING


async def _wanted(request: Request, view: SessionView) -> Wanted:
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
        raise UsageError(
            "node_id or node_ip must be provided as constructor arguments when no actor or task_id is supplied as "
            "arguments."
        )
    if suffix not in (OUT, ERR):
        raise UsageError(f"Invalid suffix: {suffix}. Must be one of 'out' or 'err'.")
    return Wanted(
        node_id or (await node_of_ip(view, node_ip) if node_ip else None),
        query.get("actor_id"),
        _number(query, "incarnation", 0) if query.get("incarnation") else None,
        query.get("task_id"),
        _number(query, "attempt_number", 0) if "attempt_number" in query else None,
        query.get("submission_id"),
        _number(query, "pid", 0) if query.get("pid") else None,
        query.get("filename"),
        suffix,
    )


def _number(query: QueryParams, name: str, default: int) -> int:
    text = query.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {text!r}") from None


def _interval(query: QueryParams) -> float:
    text = query.get("interval") or "1"
    try:
        interval = float(text)
    except ValueError:
        interval = math.nan
    if not 0 <= interval < math.inf:
        raise UsageError(f"interval must be a number of seconds, not {text!r}")
    return max(interval, _SHORTEST_INTERVAL)


async def _start(logs: Logs, found: Found, lines: int) -> int:
    if lines < 0:
        return found.start
    return await start_of_last_lines(logs, found.node, found.path, found.end, lines, start=found.start)


def _attachment(name: str) -> str:
    plain = re.sub(r'[^ -~]|["\\]', "_", name)
    return f'attachment; filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}")


ROUTES: list[BaseRoute] = [
    get("/api/v0/logs", list_logs, keep=False),
    get("/api/v0/logs/{media_type}", get_log, keep=False),
]
