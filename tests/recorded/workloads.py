"""Workloads for recorded clusters, each with jobs of its own."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from rayhistory.cli.local_ray.local_ray import LocalRay
from support.paths import SAMPLE_JOB

SAMPLE, FAILING, RUNNING = "sample-job", "failing-job", "running-job"
HOSTILE_ARGUMENT = "<script>document.title='owned'</script>"
SECRET = "s3cret-value"
HOSTILE_EVENT = "node <b onmouseover=\"document.title='owned'\">lost</b><script>document.title='owned'</script>"

_JOBS = Path(__file__).parent / "jobs"
_STARTED_MESSAGE = "everything is under way"

Workload = Callable[[LocalRay, str], Awaitable[None]]
"""Runs on a started cluster; the second argument is the interpreter that has its Ray."""


async def mixed(ray: LocalRay, python: str) -> None:
    """Run a job that succeeds, one that fails, and one that does not end, with tasks and actors in every state."""
    # Ray's dashboard and the history server read every file named event_*.log.
    (ray.session_dir / "logs" / "events" / "event_JOBS_hostile.log").write_bytes(_hostile_event() + b"\n")
    await ray.submit([python, str(_JOBS / "running.py")], RUNNING, metadata={"team": "watch"})
    await ray.submit([python, str(SAMPLE_JOB)], SAMPLE, {"API_TOKEN": SECRET}, {"team": "training"})
    await ray.submit([python, str(_JOBS / "failing.py"), HOSTILE_ARGUMENT], FAILING)
    await _started(ray, RUNNING)
    statuses = [(await ray.wait(job))["status"] for job in (SAMPLE, FAILING)]
    assert statuses == ["SUCCEEDED", "FAILED"]


async def data(ray: LocalRay, python: str) -> None:
    """Run a job of Ray Data."""
    await ray.submit([python, str(_JOBS / "data.py")], "data-job")
    assert (await ray.wait("data-job"))["status"] == "SUCCEEDED"


async def serving(ray: LocalRay, python: str) -> None:
    """Run an application of Ray Serve."""
    await ray.submit([python, str(_JOBS / "serving.py")], "serving-job")
    await _started(ray, "serving-job")


async def _started(ray: LocalRay, job: str) -> None:
    async for text in ray.follow_output(job):
        if _STARTED_MESSAGE in text:
            return


def _hostile_event() -> bytes:
    return msgspec.json.encode(
        {
            "event_id": "ab" * 18,
            "source_type": "JOBS",
            "source_hostname": "host",
            "source_pid": 1,
            "message": HOSTILE_EVENT,
            "timestamp": str(int(time.time())),
            "severity": "ERROR",
            "label": "<i>label</i>",
            "custom_fields": {},
        }
    )
