"""Requests sent to a live dashboard and later to the history server: those of the frontend and of Ray's clients."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0"
LISTS = ("tasks", "actors", "nodes", "workers", "placement_groups", "jobs")
SUMMARIES = ("", "&summary_by=func_name", "&summary_by=lineage")
UNKNOWN_ID = "ab" * 16


class DashboardRequest(msgspec.Struct, frozen=True):
    path: str
    method: str = "GET"
    browser: bool = False
    """Ray hides the values of environment variables from browsers."""

    @property
    def name(self) -> str:
        return f"{'HEAD ' if self.method == 'HEAD' else ''}{self.path}{' in a browser' if self.browser else ''}"

    @property
    def uncached(self) -> str:
        """The path that bypasses Ray's response cache, where Ray has one."""
        if not self.path.startswith(("/nodes", "/logical/", "/events")):
            return self.path
        return f"{self.path}{'&' if '?' in self.path else '?'}nocache=1"

    @property
    def headers(self) -> dict[str, str]:
        return {"User-Agent": BROWSER} if self.browser else {}


def full_list(kind: str) -> str:
    return f"/api/v0/{kind}?detail=1&limit=10000"


def general_requests() -> Iterator[DashboardRequest]:
    """Yield the requests that suit any cluster; their responses tell which details exist."""
    for kind in LISTS:
        yield DashboardRequest(full_list(kind))
        yield DashboardRequest(f"/api/v0/{kind}")
    for path in (
        "/api/v0/tasks?detail=1&limit=10000&exclude_driver=false",
        "/api/jobs/",
        "/nodes?view=summary",
        "/nodes?view=hostnamelist",
        "/nodes?view=nonsense",
        "/logical/actors",
        "/events",
        "/api/v0/actors/summarize",
        "/api/v0/tasks/timeline",
        "/api/cluster_status?format=1",
        "/api/v0/cluster_metadata",
        "/api/version",
        "/timezone",
        "/api/authentication_mode",
        "/api/profiling_enabled",
        "/api/v0/runtime_env_redaction",
        "/api/grafana_health",
        "/api/prometheus_health",
        "/api/jobs/nobody",
        f"/logical/actors/{UNKNOWN_ID}",
        f"/nodes/{UNKNOWN_ID}",
        "/api/v0/tasks?limit=10001",
        "/api/v0/tasks?detail=1&filter_keys=color&filter_predicates=%3D&filter_values=red",
    ):
        yield DashboardRequest(path)
    yield DashboardRequest("/api/v0/platform_events", "HEAD")
    for path in ("/api/jobs/", full_list("actors"), full_list("tasks"), full_list("jobs")):
        yield DashboardRequest(path, browser=True)
    yield from (DashboardRequest(f"/api/v0/tasks/summarize?{by.lstrip('&')}".rstrip("?")) for by in SUMMARIES)


def detail_requests(responses: Mapping[str, Any]) -> Iterator[DashboardRequest]:
    """Yield requests for each job, node, actor, task and log file of the cluster."""
    yield from _job_requests(responses["/api/jobs/"])
    for node in responses["/nodes?view=summary"]["data"]["summary"]:
        yield from _node_requests(node["raylet"]["nodeId"])
    for actor in responses["/logical/actors"]["data"]["actors"]:
        yield DashboardRequest(f"/logical/actors/{actor}")
        yield from (
            DashboardRequest(f"/api/v0/logs/file?actor_id={actor}&suffix={end}&lines=50000") for end in ("out", "err")
        )
    tasks = responses[full_list("tasks")]["data"]["result"]["result"]
    attempts = Counter(task["task_id"] for task in tasks)
    for task in tasks:
        yield from _task_requests(task, attempts[task["task_id"]])


def library_requests(responses: Mapping[str, Any]) -> Iterator[DashboardRequest]:
    """Yield requests about Serve and Data where they are in use: each of them starts a task in Ray."""
    classes = {actor["className"] for actor in responses["/logical/actors"]["data"]["actors"].values()}
    if "ServeController" in classes:
        yield DashboardRequest("/api/serve/applications/")
    if "_StatsActor" in classes:
        jobs = [job["job_id"] for job in responses["/api/jobs/"] if job["job_id"]]
        yield from (DashboardRequest(f"/api/data/datasets/{job}") for job in jobs)


def _job_requests(jobs: list[dict[str, Any]]) -> Iterator[DashboardRequest]:
    for job in jobs:
        for name in filter(None, (job["submission_id"], job["job_id"])):
            yield DashboardRequest(f"/api/jobs/{name}")
        if job["submission_id"]:
            yield DashboardRequest(f"/api/jobs/{job['submission_id']}/logs")
        if job["job_id"]:
            of_job = f"filter_keys=job_id&filter_predicates=%3D&filter_values={job['job_id']}"
            yield from (DashboardRequest(f"/api/v0/tasks/summarize?{of_job}{by}") for by in SUMMARIES)
            yield DashboardRequest(f"{full_list('tasks')}&{of_job}")
            yield DashboardRequest(f"{full_list('actors')}&{of_job}")
            yield DashboardRequest(f"/api/v0/tasks/timeline?download=1&job_id={job['job_id']}")
            yield DashboardRequest(f"/events?job_id={job['job_id']}")


def _node_requests(node: str) -> Iterator[DashboardRequest]:
    yield DashboardRequest(f"/nodes/{node}")
    for pattern in ("", "*worker*", "events/*", "*.nothing"):
        yield DashboardRequest(f"/api/v0/logs?node_id={node}" + (f"&glob={quote(pattern)}" if pattern else ""))
    for file in ("raylet.out", "gcs_server.out", "events/event_JOBS.log", "no-such-file.log"):
        yield DashboardRequest(f"/api/v0/logs/file?node_id={node}&filename={quote(file)}&lines=-1")


def _task_requests(task: dict[str, Any], attempts: int) -> Iterator[DashboardRequest]:
    """Yield requests for all attempts of a task: with a smaller limit, Ray returns any of them."""
    of_task = f"filter_keys=task_id&filter_predicates=%3D&filter_values={task['task_id']}"
    yield DashboardRequest(f"/api/v0/tasks?detail=1&limit={attempts}&{of_task}")
    logs = f"/api/v0/logs/file?task_id={task['task_id']}&attempt_number={task['attempt_number']}"
    yield from (DashboardRequest(f"{logs}&suffix={end}&lines=50000&filter_ansi_code=true") for end in ("out", "err"))
