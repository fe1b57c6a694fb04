"""Ray's log API: which files a node has, and what is in one of them. Mistakes are told in plain text, as Ray does."""

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from rayhistory.errors import LogNotFound, UsageError
from rayhistory.server.answers import ray_error, rest_answer, text_answer
from rayhistory.server.logfiles import Logs, start_of_last_lines
from rayhistory.server.logfind import ERR, OUT, Found, Wanted, find_log, known_node, node_of_ip
from rayhistory.server.logglob import listed
from rayhistory.server.routing import get
from rayhistory.server.view import SessionView

_DEFAULT_LINES = 1000
_BLOCK = 512 << 10
_ANSI = re.compile(rb"\x1b\[[\d;]+m")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[\d;]{0,64})?|[\xc0-\xff][\x80-\xbf]{0,2})\Z")
"""The end of a block that may be half of a character or of a colour."""


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
        groups = listed((file.path for file in files), query.get("glob", "*"))
    except (LogNotFound, UsageError) as error:
        return ray_error(str(error), 500)
    return rest_answer("", {"result": groups})


async def get_log(request: Request, view: SessionView) -> Response:
    query = request.query_params
    try:
        lines = _number(query, "lines", _DEFAULT_LINES)
        found = await find_log(view, await _wanted(request, view))
        start = await _start(view.logs, found, lines or _DEFAULT_LINES)
        blocks = _blocks(view.logs, found, start, ansi=query.get("filter_ansi_code", "").lower() != "true")
        first = await anext(blocks, b"")
    except (LogNotFound, UsageError) as error:
        return text_answer(str(error), 500)
    headers = {
        "Content-Type": "text/plain",
        "Content-Disposition": _attachment(query.get("download_filename") or "file.txt"),
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_after(first, blocks), 200, headers)


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


async def _start(logs: Logs, found: Found, lines: int) -> int:
    if lines < 0:
        return found.start
    return max(found.start, await start_of_last_lines(logs, found.node, found.path, found.end, lines))


async def _blocks(logs: Logs, found: Found, start: int, *, ansi: bool) -> AsyncIterator[bytes]:
    """The bytes in blocks that never end inside a character: Ray's client decodes each by itself."""
    rest = b""
    for begin in range(start, found.end, _BLOCK):
        block = rest + await logs.read(found.node, found.path, begin, min(begin + _BLOCK, found.end))
        unfinished = _UNFINISHED.search(block[-80:])
        rest = unfinished[0] if unfinished else b""
        if block := block[: len(block) - len(rest)]:
            yield block if ansi else _ANSI.sub(b"", block)
    if rest:
        yield rest


async def _after(first: bytes, blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for block in blocks:
        yield block


def _attachment(name: str) -> str:
    plain = re.sub(r'[^ -~]|["\\]', "_", name)
    return f'attachment; filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}")


ROUTES: list[BaseRoute] = [
    get("/api/v0/logs", list_logs),
    get("/api/v0/logs/{media_type}", get_log),
]
