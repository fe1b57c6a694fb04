"""Ray's job API, for reading: the jobs of a session, by either id, and their output."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rayhistory.errors import LogNotFound, NotIndexedYet, RayHistoryError
from rayhistory.layout import SessionRef
from rayhistory.server.answers import json_answer, parsed, text_answer
from rayhistory.server.logfind import Wanted, find_log
from rayhistory.server.logflow import begun, followed, nothing, pieces, texts
from rayhistory.server.redaction import is_browser, masked
from rayhistory.server.resolve import Selection
from rayhistory.server.routes.logs import session_is_over
from rayhistory.server.routing import answer_to, closed_for_pages, get, get_plain, resolver_of, view_of
from rayhistory.server.state_rows import known
from rayhistory.server.state_schema import JOB_STATUSES
from rayhistory.server.view import SessionView

log = logging.getLogger(__name__)

IsOver = Callable[[], Awaitable[bool]]
_FRAME = 20_000
_SOME_VERSION = "2.49.0+unknown"  # Ray's clients compare it: the first that had events
_TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
_DEFAULT_MESSAGES = {
    "PENDING": "Job has not started yet.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}


async def job_details(view: SessionView, *, mask: bool = False) -> list[dict[str, Any]]:
    """Every job as Ray describes it: submissions first, then drivers."""
    rows = await view.rows("jobs", sort=("-type", "submission_id", "job_id"))
    return [_details(row, mask=mask) for row in rows]


def _details(row: dict[str, Any], *, mask: bool) -> dict[str, Any]:
    runtime_env = parsed(row["runtime_env"], {})
    submitted = row["type"] == "SUBMISSION"
    metadata = parsed(row["metadata"], {})
    if submitted:
        metadata = {key: value for key, value in metadata.items() if key != "job_submission_id"}
    return {
        "type": row["type"],
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "driver_info": _driver(row),
        "status": known(row["status"], JOB_STATUSES),
        "entrypoint": row["entrypoint"] or "",
        "message": row["message"] or (_DEFAULT_MESSAGES.get(row["status"]) if submitted else None),
        "error_type": row["error_type"],
        "start_time": row["start_time"],
        "end_time": row["end_time"],
        "metadata": metadata,
        "runtime_env": masked(runtime_env) if mask else runtime_env,
        "driver_agent_http_address": row["driver_agent_http_address"],
        "driver_node_id": row["driver_node_id"],
        "driver_exit_code": row["driver_exit_code"],
    }


def _driver(row: dict[str, Any]) -> dict[str, str] | None:
    if row["job_id"] is None:
        return None
    return {
        "id": row["job_id"],
        "node_ip_address": row["driver_ip"] or "",
        "pid": str(row["driver_pid"] or ""),
    }


async def find_job(view: SessionView, name: str, *, mask: bool = False) -> dict[str, Any] | None:
    """A job by the id of its driver, or by the id under which it was submitted."""
    jobs = await job_details(view, mask=mask)
    for key in ("job_id", "submission_id"):
        for job in jobs:
            if job[key] == name:
                return job
    return None


async def jobs(request: Request, view: SessionView) -> Response:
    found = await job_details(view, mask=is_browser(request))
    closed_for_pages(request, view, found, "start_time", "end_time")
    return json_answer(found)


async def job(request: Request, view: SessionView) -> Response:
    name = request.path_params["job"]
    found = await find_job(view, name, mask=is_browser(request))
    if found is None:
        return text_answer(f"Job {name} does not exist", 404)
    closed_for_pages(request, view, [found], "start_time", "end_time")
    return json_answer(found)


async def job_logs(request: Request, view: SessionView) -> Response:
    """Ray puts the whole output into one JSON text: it is written as it is read, so that its size does not matter."""
    found = await _job_with_output(request, view)
    if isinstance(found, Response):
        return found
    output = nothing() if request.method == "HEAD" else await begun(_as_json(await _output(view, found)))
    return StreamingResponse(output, 200, None, "application/json")


async def _as_json(output: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    begin = b'{"logs":"'
    async for text in texts(output):
        yield begin + msgspec.json.encode(text)[1:-1]
        begin = b""
    yield begin + b'"}'


async def _job_with_output(connection: HTTPConnection, view: SessionView) -> dict[str, Any] | Response:
    """The job that is asked for, or what is said to those who ask for another."""
    name = connection.path_params["job"]
    found = await find_job(view, name)
    if found is None:
        return text_answer(f"Job {name} does not exist", 404)
    if found["type"] != "SUBMISSION":
        return text_answer("Can only get logs of submission type jobs", 400)
    return found


async def _output(view: SessionView, job: dict[str, Any], is_over: IsOver | None = None) -> AsyncIterator[bytes]:
    """What the entrypoint of a submitted job wrote, and will write until it is over; nothing if it was not kept."""
    try:
        found = await find_log(view, Wanted(submission_id=job["submission_id"]))
    except LogNotFound:
        return nothing()
    return followed(view.logs, found, is_over) if is_over else pieces(view.logs, found)


async def tail(socket: WebSocket) -> None:
    """The output of a job, until it or the session ends; of what is over, all that there is.

    When the store fails midway, the connection breaks off: a proper end would say that this was everything.
    """
    try:
        view = await view_of(socket)
        job = await _job_with_output(socket, view)
        output = job if isinstance(job, Response) else await _output(view, job, lambda: _is_over(socket, view.ref))
    except RayHistoryError as error:
        output = answer_to(error)
    if isinstance(output, Response):
        await socket.send_denial_response(output)
        return
    await socket.accept()
    sending, leaving = asyncio.create_task(_send(socket, output)), asyncio.create_task(_left(socket))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        leaving.cancel()
    failure, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
    if failure is None:
        await socket.close()
    elif isinstance(failure, RayHistoryError):
        log.warning("a job's output breaks off", extra={"path": socket.url.path, "reason": str(failure)})
    elif not isinstance(failure, asyncio.CancelledError | WebSocketDisconnect):
        raise failure


async def _send(socket: WebSocket, output: AsyncIterator[bytes]) -> None:
    async for text in texts(output):
        for start in range(0, len(text), _FRAME):
            await socket.send_text(text[start : start + _FRAME])


async def _left(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _is_over(socket: WebSocket, ref: SessionRef) -> bool:
    if await session_is_over(socket, ref):
        return True
    try:
        view = await resolver_of(socket).view(Selection(ref.namespace, ref.cluster, ref.session))
        job = await find_job(view, socket.path_params["job"])
    except NotIndexedYet:
        return False
    return job is None or job["status"] in _TERMINAL


async def not_a_socket(request: Request) -> Response:
    text = "This is a WebSocket: the output in one piece is at …/logs"
    return Response(text, 426, {"Upgrade": "websocket", "Connection": "Upgrade"}, "text/plain")


async def version(request: Request, view: SessionView) -> Response:
    kept = await view.snapshot("/api/version")
    if not isinstance(kept, dict):
        kept = {}
    return json_answer(
        {
            "version": kept.get("version", "4"),
            "ray_version": kept.get("ray_version") or view.index.manifest.ray_version or _SOME_VERSION,
            "ray_commit": kept.get("ray_commit", ""),
            "session_name": view.ref.session,
        }
    )


ROUTES: list[BaseRoute] = [
    get("/api/version", version),
    get("/api/ray/version", version),
    get("/api/jobs", jobs),
    get("/api/jobs/", jobs),
    get("/api/jobs/{job}", job),
    get("/api/jobs/{job}/logs", job_logs, keep=False),
    get_plain("/api/jobs/{job}/logs/tail", not_a_socket),
    WebSocketRoute("/api/jobs/{job}/logs/tail", tail),
]
