"""What is asked of a live dashboard, and later of its history: all that the frontend and Ray's own clients ask."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0"
LISTS = ("tasks", "actors", "nodes", "workers", "placement_groups", "jobs")
SUMMARIES = ("", "&summary_by=func_name", "&summary_by=lineage")
NOBODY = "ab" * 16


class Question(msgspec.Struct, frozen=True):
    path: str
    method: str = "GET"
    browser: bool = False
    """Ray hides the values of environment variables from browsers."""

    @property
    def name(self) -> str:
        return f"{'HEAD ' if self.method == 'HEAD' else ''}{self.path}{' in a browser' if self.browser else ''}"

    @property
    def uncached(self) -> str:
        """Ray answers some questions with what it found the last time somebody asked."""
        if not self.path.startswith(("/nodes", "/logical/", "/events")):
            return self.path
        return f"{self.path}{'&' if '?' in self.path else '?'}nocache=1"

    @property
    def headers(self) -> dict[str, str]:
        return {"User-Agent": BROWSER} if self.browser else {}


def everything(kind: str) -> str:
    return f"/api/v0/{kind}?detail=1&limit=10000"


def first_questions() -> Iterator[Question]:
    """Those that can be asked of any cluster; their answers say what else there is to ask."""
    for kind in LISTS:
        yield Question(everything(kind))
        yield Question(f"/api/v0/{kind}")
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
        f"/logical/actors/{NOBODY}",
        f"/nodes/{NOBODY}",
        "/api/v0/tasks?limit=10001",
        "/api/v0/tasks?detail=1&filter_keys=color&filter_predicates=%3D&filter_values=red",
    ):
        yield Question(path)
    yield Question("/api/v0/platform_events", "HEAD")
    for path in ("/api/jobs/", everything("actors"), everything("tasks"), everything("jobs")):
        yield Question(path, browser=True)
    yield from (Question(f"/api/v0/tasks/summarize?{by.lstrip('&')}".rstrip("?")) for by in SUMMARIES)


def later_questions(known: Mapping[str, Any]) -> Iterator[Question]:
    """Those about what there is: each job, node, actor and task, and the logs."""
    yield from _about_jobs(known["/api/jobs/"])
    for node in known["/nodes?view=summary"]["data"]["summary"]:
        yield from _about_node(node["raylet"]["nodeId"])
    for actor in known["/logical/actors"]["data"]["actors"]:
        yield Question(f"/logical/actors/{actor}")
        yield from (Question(f"/api/v0/logs/file?actor_id={actor}&suffix={end}&lines=50000") for end in ("out", "err"))
    tasks = known[everything("tasks")]["data"]["result"]["result"]
    attempts = Counter(task["task_id"] for task in tasks)
    for task in tasks:
        yield from _about_task(task, attempts[task["task_id"]])


def library_questions(known: Mapping[str, Any]) -> Iterator[Question]:
    """What there is of Serve and Data, where they are in use. To ask this is itself a task of Ray's."""
    classes = {actor["className"] for actor in known["/logical/actors"]["data"]["actors"].values()}
    if "ServeController" in classes:
        yield Question("/api/serve/applications/")
    if "_StatsActor" in classes:
        named = [job["job_id"] for job in known["/api/jobs/"] if job["job_id"]]
        yield from (Question(f"/api/data/datasets/{job}") for job in named)


def _about_jobs(jobs: list[dict[str, Any]]) -> Iterator[Question]:
    for job in jobs:
        for name in filter(None, (job["submission_id"], job["job_id"])):
            yield Question(f"/api/jobs/{name}")
        if job["submission_id"]:
            yield Question(f"/api/jobs/{job['submission_id']}/logs")
        if job["job_id"]:
            mine = f"filter_keys=job_id&filter_predicates=%3D&filter_values={job['job_id']}"
            yield from (Question(f"/api/v0/tasks/summarize?{mine}{by}") for by in SUMMARIES)
            yield Question(f"{everything('tasks')}&{mine}")
            yield Question(f"{everything('actors')}&{mine}")
            yield Question(f"/api/v0/tasks/timeline?download=1&job_id={job['job_id']}")
            yield Question(f"/events?job_id={job['job_id']}")


def _about_node(node: str) -> Iterator[Question]:
    yield Question(f"/nodes/{node}")
    for pattern in ("", "*worker*", "events/*", "*.nothing"):
        yield Question(f"/api/v0/logs?node_id={node}" + (f"&glob={quote(pattern)}" if pattern else ""))
    for file in ("raylet.out", "gcs_server.out", "events/event_JOBS.log", "no-such-file.log"):
        yield Question(f"/api/v0/logs/file?node_id={node}&filename={quote(file)}&lines=-1")


def _about_task(task: dict[str, Any], attempts: int) -> Iterator[Question]:
    """All its attempts at once: which one is first when fewer are asked for is chance in Ray."""
    this = f"filter_keys=task_id&filter_predicates=%3D&filter_values={task['task_id']}"
    yield Question(f"/api/v0/tasks?detail=1&limit={attempts}&{this}")
    logs = f"/api/v0/logs/file?task_id={task['task_id']}&attempt_number={task['attempt_number']}"
    yield from (Question(f"{logs}&suffix={end}&lines=50000&filter_ansi_code=true") for end in ("out", "err"))
