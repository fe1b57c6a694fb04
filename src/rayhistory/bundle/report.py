"""Content of a report about a session, read through the library from a server or a store."""

from typing import Any, NamedTuple

import msgspec

from rayhistory.api.async_history import AsyncSession, RowSelection
from rayhistory.api.rows import Row, RowList
from rayhistory.bundle.line_chart import Series
from rayhistory.bundle.secrets_filter import redact, redact_text
from rayhistory.errors import RayHistoryError

_LOG_LINES = 60
_MAX_JOBS = 50
_MAX_NODES = 200
_MAX_FAILED = 500
_MAX_LOGS = 5
_TASK_COLUMNS = "name,state,attempt_number,error_type,error_message,node_id,worker_id,start_time_ms,end_time_ms,task_id"


class ChartQuery(NamedTuple):
    title: str
    query: str
    unit: str
    label: str
    """The label that names a series."""


_CHARTS = (
    ChartQuery("CPU by node", "ray_node_cpu_utilization", "%", "ip"),
    ChartQuery("Memory by node", "ray_node_mem_used", "B", "ip"),
    ChartQuery("GPU by node", "sum by (ip) (ray_node_gpus_utilization)", "%", "ip"),
    ChartQuery("Object store", "sum by (Location) (ray_object_store_memory)", "B", "Location"),
    ChartQuery("Tasks by state", "sum by (State) (ray_tasks)", "", "State"),
)


class Chart(msgspec.Struct):
    title: str
    series: list[Series]
    unit: str


class LogTail(msgspec.Struct):
    """The last lines of a failed job's log."""

    title: str
    text: str


class Report(msgspec.Struct):
    name: str
    url: str
    overview: Row
    diagnosis: Row
    gaps: list[Row]
    jobs: list[Row]
    nodes: list[Row]
    failed: list[Row]
    failed_total: int
    environment: dict[str, str]
    charts: list[Chart]
    logs: list[LogTail]
    missing: list[str]
    """Sections that could not be read, each with the reason."""


async def gather_report(session: AsyncSession) -> Report:
    """Gather all sections. A section that cannot be read is listed as missing. Without tables there is no report."""
    missing: list[str] = []
    jobs = await _rows(session, RowSelection("jobs", limit=_MAX_JOBS))
    failed = RowSelection("tasks", "state = FAILED and type != DRIVER_TASK", _TASK_COLUMNS, "end_time_ms", _MAX_FAILED)
    return Report(
        name=session.name,
        url=session.url,
        overview=redact(await session.overview()),
        diagnosis=redact(await _part(session.diagnose(), {}, "diagnosis", missing)),
        gaps=redact((await session.gaps())["gaps"]),
        jobs=redact(jobs),
        nodes=redact(await _rows(session, RowSelection("nodes", limit=_MAX_NODES))),
        failed=redact(await _rows(session, failed)),
        failed_total=await session.count(msgspec.structs.replace(failed, limit=None)),
        environment=await _part(_environment(session, jobs), {}, "environment", missing),
        charts=[chart for each in _CHARTS if (chart := await _chart(session, each, missing)).series],
        logs=[await _log_tail(session, job, missing) for job in jobs if job.get("status") == "FAILED"][:_MAX_LOGS],
        missing=missing,
    )


async def _part(reading: Any, default: Any, name: str, missing: list[str]) -> Any:
    try:
        return await reading
    except RayHistoryError as error:
        missing.append(f"{name}: {error}")
        return default


async def _rows(session: AsyncSession, selection: RowSelection) -> list[Row]:
    return [row async for page in session.pages(selection) for row in page]


async def _environment(session: AsyncSession, jobs: list[Row]) -> dict[str, str]:
    version = await session.version()
    found = {"Ray": str(version.get("ray_version", "")), "Ray commit": str(version.get("ray_commit", ""))}
    for job in jobs:
        if (job.get("runtime_env") or "{}") != "{}":
            found[f"runtime_env of {job.get('submission_id') or job.get('job_id')}"] = str(redact(job["runtime_env"]))
    return {name: value for name, value in found.items() if value}


async def _chart(session: AsyncSession, chart: ChartQuery, missing: list[str]) -> Chart:
    reading = session.metrics(chart.query, start_ms=None, end_ms=None, step_ms=None)
    points: RowList = await _part(reading, RowList([]), chart.title, missing)
    series: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        series.setdefault(str(point.get(chart.label, "")), []).append((point["time_ms"], point["value"]))
    return Chart(chart.title, sorted(series.items()), chart.unit)


async def _log_tail(session: AsyncSession, job: Row, missing: list[str]) -> LogTail:
    name = str(job.get("submission_id") or job.get("job_id"))
    text = ""
    if job.get("submission_id") and job.get("driver_node_id"):
        reading = _read_tail(session, job["driver_node_id"], f"job-driver-{name}.log")
        text = await _part(reading, "", f"log of {name}", missing)
    return LogTail(name, redact_text(text))


async def _read_tail(session: AsyncSession, node_id: str, filename: str) -> str:
    chunks = session.read_log(node_id=node_id, filename=filename, lines=_LOG_LINES)
    return b"".join([chunk async for chunk in chunks]).decode(errors="replace")
