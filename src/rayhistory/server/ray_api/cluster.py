"""The cluster as a whole. What a dead cluster cannot answer is said in a way that the pages show well."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.events.times import parse_ns
from rayhistory.index.derive import NO_LOSS
from rayhistory.index.query import Filter, Row
from rayhistory.server.answers import google_style, inside, json_answer, parsed, rest_answer, text_answer
from rayhistory.server.redaction import is_browser, masked
from rayhistory.server.routing import get, get_plain, own_answer_to
from rayhistory.server.view import SessionView

_CPP_SOURCES = {"COMMON", "CORE_WORKER", "GCS", "RAYLET"}
_PROFILING = ("/task/traceback", "/task/cpu_profile", "/worker/traceback", "/worker/cpu_profile", "/memory_profile")
_NO_SERVE: dict[str, Any] = {
    "controller_info": {},
    "proxies": {},
    "applications": {},
    "target_capacity": None,
}


async def cluster_status(request: Request, view: SessionView) -> Response:
    if request.query_params.get("format") == "1":
        status = inside(await view.snapshot("/api/cluster_status?format=1"), "data").get("clusterStatus")
        return rest_answer("Got formatted cluster status.", {"clusterStatus": status})
    nothing = {"autoscalingStatus": None, "autoscalingError": None, "clusterStatus": None}
    return rest_answer("Got cluster status.", inside(await view.snapshot("/api/cluster_status"), "data") or nothing)


async def cluster_metadata(request: Request, view: SessionView) -> Response:
    kept = inside(await view.snapshot("/api/v0/cluster_metadata"), "data")
    version = view.index.manifest.ray_version
    return rest_answer("", kept or ({"rayVersion": version} if version else {}))


async def timezone(request: Request, view: SessionView) -> Response:
    return json_answer(await view.snapshot("/timezone") or {"offset": "+00:00", "value": "UTC"})


async def events(request: Request, view: SessionView) -> Response:
    job = request.query_params.get("job_id")
    if job is not None:
        rows = await view.rows("cluster_events", Filter("job_id", "=", job), sort=("timestamp_s", "event_id"))
        return rest_answer("Job events fetched.", {"jobId": job, "events": [_event(row) for row in rows]})
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in await view.rows("cluster_events", sort=("timestamp_s", "event_id")):
        by_job.setdefault(row["job_id"] or "global", []).append(_event(row))
    return rest_answer("All events fetched.", {"events": by_job})


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """As Ray's Python writes it, or its C++, which has other names for the writer and a number for the time."""
    host, pid, seconds = row["hostname"] or "", row["pid"] or "", row["timestamp_s"]
    written: dict[str, Any] = {"hostName": host, "pid": pid, "timestamp": seconds}
    if row["source_type"] not in _CPP_SOURCES:
        written = {"sourceHostname": host, "sourcePid": _number(pid), "timestamp": str(seconds)}
    return written | {
        "eventId": row["event_id"],
        "sourceType": row["source_type"] or "",
        "message": row["message"] or "",
        "customFields": google_style(parsed(row["custom_fields"], {})),
        "severity": row["severity"] or "",
        "label": row["label"] or "",
    }


def _number(text: str) -> int | str:
    """A number where it is one that JSON has."""
    return int(text) if text.isdecimal() and len(text) < 20 else text


async def platform_events(request: Request, view: SessionView) -> Response:
    """The newest first, by their own times. The page's link is hidden when there are none: it goes by the status of a
    HEAD."""
    rows = await view.rows("platform_events", sort=("ns", "event_id"))
    if not rows:
        return text_answer("404: Not Found", 404)
    told = [parsed(row["body"], {}) for row in rows]
    told.sort(key=lambda event: parse_ns(event.get("timestamp")) or 0, reverse=True)
    return rest_answer("Retrieved platform events", {"events": told})


async def serve_applications(request: Request, view: SessionView) -> Response:
    kept = await view.snapshot("/api/serve/applications/") or _NO_SERVE
    if is_browser(request):
        kept = _without_secrets(kept)
    return json_answer(kept)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if isinstance(value, dict):
        return {key: masked(item) if key == "runtime_env" else _without_secrets(item) for key, item in value.items()}
    return value


async def datasets(request: Request, view: SessionView) -> Response:
    kept = await view.snapshot(f"/api/data/datasets/{request.path_params['job']}")
    return json_answer(kept or {"datasets": []})


async def train_runs(request: Request, view: SessionView) -> Response:
    return json_answer(await view.snapshot("/api/train/v2/runs/v1") or {"train_runs": []})


async def component_activities(request: Request, view: SessionView) -> Response:
    """Whether drivers were at work at the last sign of life, as autoscalers ask."""
    jobs = await view.rows("jobs", Filter("job_id", "!=", None), columns=("status", "end_time"))
    active = sum(job["status"] == "RUNNING" for job in jobs)
    ended = max((job["end_time"] or 0 for job in jobs), default=0)
    driver = {
        "is_active": "ACTIVE" if active else "INACTIVE",
        "reason": f"Number of active drivers: {active}" if active else None,
        "timestamp": view.last_ms / 1000,
        "last_activity_at": ended / 1000 or None,
    }
    return json_answer({"driver": driver})


async def profiling_enabled(request: Request) -> Response:
    return rest_answer("", {"profilingEnabled": False})


async def profiling(request: Request) -> Response:
    """Frontends before 2.56 have links to these without asking whether they work."""
    return text_answer("What is kept of a cluster has no processes that could be looked into.", 410)


async def redaction(request: Request) -> Response:
    return rest_answer("", {"redactionEnabled": True})


async def usage_stats(request: Request) -> Response:
    data = {"usageStatsEnabled": False, "usageStatsPromptEnabled": False}
    return rest_answer("Fetched usage stats enabled", data)


async def gaps(request: Request, view: SessionView) -> Response:
    """What is missing from this session, and why."""
    rows = await view.rows("gaps", sort=("kind", "detail", "source"))
    return json_answer({"gaps": rows, "complete": lost_nothing(rows)})


def lost_nothing(gaps: list[Row]) -> bool:
    """Whether all that is told takes nothing away."""
    return all(row["kind"] in NO_LOSS for row in gaps)


ROUTES: list[BaseRoute] = [
    get("/api/cluster_status", cluster_status),
    get("/api/v0/cluster_metadata", cluster_metadata),
    get("/timezone", timezone),
    get("/events", events),
    get("/api/v0/platform_events", platform_events),
    get("/api/serve/applications", serve_applications),
    get("/api/serve/applications/", serve_applications),
    get("/api/data/datasets/{job}", datasets),
    get("/api/train/v2/runs/v1", train_runs),
    get("/api/component_activities", component_activities),
    get("/api/history/gaps", gaps, failed=own_answer_to),
    get_plain("/api/profiling_enabled", profiling_enabled),
    *(get_plain(path, profiling) for path in _PROFILING),
    get_plain("/api/v0/runtime_env_redaction", redaction),
    get_plain("/usage_stats_enabled", usage_stats),
]
