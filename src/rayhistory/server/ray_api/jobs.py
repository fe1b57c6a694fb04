"""Ray's job API, read-only: the jobs of a session, by job id or submission id, and their output.

Error texts are copied from Ray, because its clients show or compare them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rayhistory.errors import LogNotFound, RayHistoryError, SessionNotIndexed, TimeBeforeStart
from rayhistory.index.query.query import Query, Row
from rayhistory.server.http.error_responses import ray_error_response
from rayhistory.server.http.json_lists import concatenated, encoded_items, json_items
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, json_list_response
from rayhistory.server.http.responses import json_response, text_response
from rayhistory.server.http.streaming import empty_body, prefetch_first
from rayhistory.server.http.view_routes import (
    end_open_rows_for_browsers,
    plain_route,
    resolver_of,
    view_of,
    view_route,
)
from rayhistory.server.logs.follow import follow, session_has_ended
from rayhistory.server.logs.locate import LogQuery, find_log
from rayhistory.server.logs.stream import decode_text, read_range
from rayhistory.server.ray_api.job_details import JOBS_ORDER, find_job, job_details
from rayhistory.server.view import SessionView
from rayhistory.sessions import SessionRef
from rayhistory.sessions.selection import Selection

log = logging.getLogger(__name__)

HasEnded = Callable[[], Awaitable[bool]]
_MAX_FRAME_CHARS = 20_000
VERSION_PATHS = ("/api/version", "/api/ray/version")
_API_VERSION = "4"
_FALLBACK_RAY_VERSION = "2.49.0+unknown"  # Ray's clients compare versions; 2.49 was the first with events
_TERMINAL_STATUSES = ("SUCCEEDED", "FAILED", "STOPPED")


async def jobs(request: Request, view: SessionView) -> Response:
    mask = is_browser(request)

    def encode(rows: list[Row]) -> bytes:
        details = [job_details(row, mask=mask) for row in rows]
        end_open_rows_for_browsers(request, view, details, "start_time", "end_time")
        return json_items(details)

    items = encoded_items(view.batches("jobs", sort=JOBS_ORDER), encode)
    max_rows = await view.index.max_rows(Query("jobs"), LARGE_RESPONSE_ROWS)
    return await json_list_response(request, concatenated(b"[", items, b"]"), max_rows)


async def job(request: Request, view: SessionView) -> Response:
    job_id = request.path_params["job"]
    details = await find_job(view, job_id, mask=is_browser(request))
    if details is None:
        return text_response(f"Job {job_id} does not exist", 404)
    end_open_rows_for_browsers(request, view, [details], "start_time", "end_time")
    return json_response(details)


async def job_logs(request: Request, view: SessionView) -> Response:
    """Return the whole output in one JSON string, as Ray does. It is streamed, because it may be large."""
    details = await _job_with_output(request, view)
    if isinstance(details, Response):
        return details
    output = (
        empty_body() if request.method == "HEAD" else await prefetch_first(_logs_json(await _output(view, details)))
    )
    return StreamingResponse(output, 200, None, "application/json")


async def _logs_json(output: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    prefix = b'{"logs":"'
    async for text in decode_text(output):
        yield prefix + msgspec.json.encode(text)[1:-1]
        prefix = b""
    yield prefix + b'"}'


async def _job_with_output(connection: HTTPConnection, view: SessionView) -> dict[str, Any] | Response:
    """Return the requested job, or an error response if it does not exist or was not submitted through Ray Jobs."""
    job_id = connection.path_params["job"]
    details = await find_job(view, job_id)
    if details is None:
        return text_response(f"Job {job_id} does not exist", 404)
    if details["type"] != "SUBMISSION":
        return text_response("Can only get logs of submission type jobs", 400)
    return details


async def _output(view: SessionView, job: dict[str, Any], has_ended: HasEnded | None = None) -> AsyncIterator[bytes]:
    """Return the output of a submitted job's entrypoint; empty if it was not stored.

    With `has_ended`, appended output follows until it returns True.
    """
    try:
        log_range = await find_log(view, LogQuery(submission_id=job["submission_id"]))
    except LogNotFound:
        return empty_body()
    return follow(view.logs, log_range, has_ended) if has_ended else read_range(view.logs, log_range)


async def tail(socket: WebSocket) -> None:
    """Send the output of a job until the job or its session ends.

    If the store fails midway, the connection is dropped, because a regular close would mean that the output is
    complete.
    """
    try:
        view = await view_of(socket)
        job = await _job_with_output(socket, view)
        output = (
            job if isinstance(job, Response) else await _output(view, job, lambda: _output_has_ended(socket, view.ref))
        )
    except RayHistoryError as error:
        output = ray_error_response(error)
    if isinstance(output, Response):
        await socket.send_denial_response(output)
        return
    await socket.accept()
    sender, disconnect = asyncio.create_task(_send(socket, output)), asyncio.create_task(_wait_for_disconnect(socket))
    try:
        await asyncio.wait({sender, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sender.cancel()
        disconnect.cancel()
    failure, _ = await asyncio.gather(sender, disconnect, return_exceptions=True)
    if failure is None:
        await socket.close()
    elif isinstance(failure, RayHistoryError):
        log.warning(
            "cannot read job log, closing the WebSocket",
            extra={"path": socket.url.path, "reason": str(failure)},
        )
    elif not isinstance(failure, asyncio.CancelledError | WebSocketDisconnect):
        raise failure


async def _send(socket: WebSocket, output: AsyncIterator[bytes]) -> None:
    async for text in decode_text(output):
        for start in range(0, len(text), _MAX_FRAME_CHARS):
            await socket.send_text(text[start : start + _MAX_FRAME_CHARS])


async def _wait_for_disconnect(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _output_has_ended(socket: WebSocket, ref: SessionRef) -> bool:
    if await session_has_ended(socket, ref):
        return True
    try:
        view = await resolver_of(socket).view(Selection(ref.namespace, ref.cluster, ref.session))
        job = await find_job(view, socket.path_params["job"])
    except SessionNotIndexed:
        return False
    return job is None or job["status"] in _TERMINAL_STATUSES


async def websocket_required(request: Request) -> Response:
    text = "This is a WebSocket endpoint. GET …/logs returns the whole output."
    return Response(text, 426, {"Upgrade": "websocket", "Connection": "Upgrade"}, "text/plain")


async def version(request: Request, view: SessionView) -> Response:
    stored = await view.dashboard_response("/api/version")
    return json_response(
        {
            "version": stored.get("version", _API_VERSION),
            "ray_version": stored.get("ray_version") or view.index.manifest.ray_version or _FALLBACK_RAY_VERSION,
            "ray_commit": stored.get("ray_commit", ""),
            "session_name": view.ref.session,
        }
    )


def version_without_session() -> Response:
    """Respond to the version check of a client that was given only the server's address.

    If this check fails, Ray's clients print only the status. If it succeeds, they print the error of their next
    request.
    """
    versions = {"version": _API_VERSION, "ray_version": _FALLBACK_RAY_VERSION}
    return json_response({**versions, "ray_commit": "", "session_name": ""})


def _version_error(error: RayHistoryError) -> Response:
    """Let the version check of a client succeed, so that it prints the error of its next request."""
    return version_without_session() if isinstance(error, TimeBeforeStart) else ray_error_response(error)


ROUTES: list[BaseRoute] = [
    *(view_route(path, version, on_error=_version_error) for path in VERSION_PATHS),
    view_route("/api/jobs", jobs),
    view_route("/api/jobs/", jobs),
    view_route("/api/jobs/{job}", job),
    view_route("/api/jobs/{job}/logs", job_logs, cache=False),
    plain_route("/api/jobs/{job}/logs/tail", websocket_required),
    WebSocketRoute("/api/jobs/{job}/logs/tail", tail),
]
