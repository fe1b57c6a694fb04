"""Endpoints about the whole cluster.

For data that only a running cluster has, the response is a default value that the pages can show.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.events.times import parse_ns
from rayhistory.index.query.query import Filter, Query
from rayhistory.masking import mask_env_vars
from rayhistory.server.http.json_lists import json_array, rest_chunks
from rayhistory.server.http.redaction import is_browser
from rayhistory.server.http.response_cache import json_list_response
from rayhistory.server.http.responses import google_style, json_response, rest_response, text_response
from rayhistory.server.http.view_routes import plain_route, view_route
from rayhistory.server.ray_api.newest_rows import NewestRows
from rayhistory.server.untrusted_json import decode_json, nested_dict
from rayhistory.server.view import SessionView

_CPP_SOURCES = {"COMMON", "CORE_WORKER", "GCS", "RAYLET"}
_PROFILING_PATHS = (
    "/task/traceback",
    "/task/cpu_profile",
    "/worker/traceback",
    "/worker/cpu_profile",
    "/memory_profile",
)
_EMPTY_SERVE: dict[str, Any] = {
    "controller_info": {},
    "proxies": {},
    "applications": {},
    "target_capacity": None,
}


async def cluster_status(request: Request, view: SessionView) -> Response:
    if request.query_params.get("format") == "1":
        status = nested_dict(await view.dashboard_response("/api/cluster_status?format=1"), "data").get("clusterStatus")
        return rest_response("Got formatted cluster status.", {"clusterStatus": status})
    defaults = {"autoscalingStatus": None, "autoscalingError": None, "clusterStatus": None}
    return rest_response(
        "Got cluster status.", nested_dict(await view.dashboard_response("/api/cluster_status"), "data") or defaults
    )


async def cluster_metadata(request: Request, view: SessionView) -> Response:
    stored = nested_dict(await view.dashboard_response("/api/v0/cluster_metadata"), "data")
    version = view.index.manifest.ray_version
    return rest_response("", stored or ({"rayVersion": version} if version else {}))


async def timezone(request: Request, view: SessionView) -> Response:
    return json_response(await view.dashboard_response("/timezone") or {"offset": "+00:00", "value": "UTC"})


async def events(request: Request, view: SessionView) -> Response:
    job = request.query_params.get("job_id")
    filters = () if job is None else (Filter("job_id", "=", job),)
    newest = NewestRows(view, Query("cluster_events", filters=filters, sort=("-timestamp_s", "-event_id")), _event)

    async def chunks() -> AsyncIterator[bytes]:
        events_by_job: dict[str, list[bytes]] = {}
        for job_id, event in reversed(await newest.read()):
            events_by_job.setdefault(job_id, []).append(event)
        if job is not None:
            found = next(iter(events_by_job.values()), [])
            data = b'{"jobId":' + msgspec.json.encode(job) + b',"events":' + json_array(found)
        else:
            members = (msgspec.json.encode(name) + b":" + json_array(found) for name, found in events_by_job.items())
            data = b'{"events":{' + b",".join(members) + b"}"
        message = "All events fetched." if job is None else "Job events fetched."
        async for chunk in rest_chunks(message, data, newest.notes, b"}"):
            yield chunk

    return await json_list_response(request, chunks(), await newest.max_rows())


def _event(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the job of an event, and the event in Ray's shape.

    Events that Ray's C++ code wrote have other field names and another time format than those of its Python code.
    """
    host, pid, seconds = row["hostname"] or "", row["pid"] or "", row["timestamp_s"]
    writer: dict[str, Any] = {"hostName": host, "pid": pid, "timestamp": seconds}
    if row["source_type"] not in _CPP_SOURCES:
        writer = {"sourceHostname": host, "sourcePid": _json_number(pid), "timestamp": str(seconds)}
    return row["job_id"] or "global", writer | {
        "eventId": row["event_id"],
        "sourceType": row["source_type"] or "",
        "message": row["message"] or "",
        "customFields": google_style(decode_json(row["custom_fields"], {})),
        "severity": row["severity"] or "",
        "label": row["label"] or "",
    }


def _json_number(text: str) -> int | str:
    """Return a text of fewer than 20 digits as a number, and any other text unchanged."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


async def platform_events(request: Request, view: SessionView) -> Response:
    """Return platform events, newest first. The frontend sends HEAD, and hides its page if the status is 404."""
    newest = NewestRows(view, Query("platform_events", sort=("-ns",)), _platform_event)
    max_rows = await newest.max_rows()
    if not max_rows:
        return text_response("404: Not Found", 404)

    async def chunks() -> AsyncIterator[bytes]:
        found = json_array(event for _, event in sorted(await newest.read(), key=lambda found: -found[0]))
        async for chunk in rest_chunks("Retrieved platform events", b'{"events":', found, newest.notes, b"}"):
            yield chunk

    return await json_list_response(request, chunks(), max_rows)


def _platform_event(row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    event = decode_json(row["body"], {})
    return parse_ns(event.get("timestamp")) or 0, event


async def serve_applications(request: Request, view: SessionView) -> Response:
    stored = await view.dashboard_response("/api/serve/applications/")
    return await _stored_response(request, stored or _EMPTY_SERVE)


async def train_runs(request: Request, view: SessionView) -> Response:
    stored = await view.dashboard_response("/api/train/v2/runs/v1")
    return await _stored_response(request, stored or {"train_runs": []})


async def _stored_response(request: Request, stored: Any) -> Response:
    """Return a stored dashboard response. For browsers, the values of environment variables are masked."""
    mask = is_browser(request)
    return await asyncio.to_thread(lambda: json_response(mask_env_vars(stored) if mask else stored))


async def component_activities(request: Request, view: SessionView) -> Response:
    """Return whether drivers were active at the time of the session's last data. Autoscalers call this endpoint."""
    drivers = Filter("job_id", "!=", None)
    active = await view.index.count(Query("jobs", filters=(drivers, Filter("status", "in", ("RUNNING",)))))
    last = await view.rows("jobs", drivers, Filter("end_time", "!=", None), sort=("-end_time",), limit=1)
    ended = last[0]["end_time"] if last else 0
    driver = {
        "is_active": "ACTIVE" if active else "INACTIVE",
        "reason": f"Number of active drivers: {active}" if active else None,
        "timestamp": view.last_ms / 1000,
        "last_activity_at": ended / 1000 or None,
    }
    return json_response({"driver": driver})


async def profiling_enabled(request: Request) -> Response:
    return rest_response("", {"profilingEnabled": False})


async def profiling_unavailable(request: Request) -> Response:
    """Reject profiling. Frontends before 2.56 link to it without checking `/api/profiling_enabled`."""
    return text_response("Profiling needs a running cluster.", 410)


async def redaction(request: Request) -> Response:
    return rest_response("", {"redactionEnabled": True})


async def usage_stats(request: Request) -> Response:
    data = {"usageStatsEnabled": False, "usageStatsPromptEnabled": False}
    return rest_response("Fetched usage stats enabled", data)


ROUTES: list[BaseRoute] = [
    view_route("/api/cluster_status", cluster_status),
    view_route("/api/v0/cluster_metadata", cluster_metadata),
    view_route("/timezone", timezone),
    view_route("/events", events),
    view_route("/api/v0/platform_events", platform_events),
    view_route("/api/serve/applications", serve_applications),
    view_route("/api/serve/applications/", serve_applications),
    view_route("/api/train/v2/runs/v1", train_runs),
    view_route("/api/component_activities", component_activities),
    plain_route("/api/profiling_enabled", profiling_enabled),
    *(plain_route(path, profiling_unavailable) for path in _PROFILING_PATHS),
    plain_route("/api/v0/runtime_env_redaction", redaction),
    plain_route("/usage_stats_enabled", usage_stats),
]
