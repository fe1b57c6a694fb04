"""A driver without the export variables on a real Ray: the causes of its failures, and the remedy."""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayhistory import ray_env
from rayhistory.events.dashboard_responses import FAILED_TASKS_URI
from rayhistory.gaps import GapCode
from support.cli_call import Command
from support.collector_process import CollectorProcess, eventually, running_collector
from support.ray_without_collector import RunningRay, ray_without_collector

SILENT_DRIVER = "driver does not export events"
REMEDY = "--system-config"
DRIVER = """
import os, sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(max_retries=0)
def load_rows():
    raise ValueError("row 17 has no label")

@ray.remote(max_retries=0)
def crash():
    os._exit(9)

@ray.remote
def succeed():
    return 1

for task in (load_rows, crash, succeed):
    try:
        ray.get(task.remote())
    except ray.exceptions.RayError:
        pass
time.sleep(3)  # workers send their events every second, and end with the driver
"""


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectorProcess]:
    """A collector that asked the dashboard about the driver's tasks, and ended with the cluster."""
    temp_dir = Path(f"/tmp/rh-silent-{os.getpid()}")  # short, for Ray's sockets
    temp_dir.mkdir()
    try:
        environment = {"RAY_TMP_ROOT": str(temp_dir), "RAY_DASHBOARD_ADDRESS": ""}
        with running_collector(tmp_path_factory.mktemp("home"), "--role=Head", **environment) as collector:
            asyncio.run(run_driver(collector, temp_dir))
            yield collector
    finally:
        shutil.rmtree(temp_dir)


async def run_driver(collector: CollectorProcess, temp_dir: Path) -> None:
    variables = ray_env.export_environment(f"{collector.url}/v1/events", importlib.metadata.version("ray"))
    async with ray_without_collector(temp_dir, ray=None, **variables) as ray:
        await asyncio.to_thread(drive, ray)
        await asyncio.to_thread(eventually, lambda: has_failed_tasks(collector), 60)
        assert await asyncio.to_thread(collector.terminate, 60) == 0


def drive(ray: RunningRay) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    subprocess.run([sys.executable, "-c", DRIVER, ray.address], env=environment, check=True, timeout=120)


def has_failed_tasks(collector: CollectorProcess) -> bool:
    """Return True once the dashboard's list of failed tasks and the end of the last task are on disk."""
    with contextlib.suppress(OSError, EOFError, zlib.error):
        spooled = collector.spooled()
        return FAILED_TASKS_URI.encode() in spooled and b'"FINISHED"' in spooled
    return False


@pytest.fixture
def rayhistory(
    collector: CollectorProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    return Command(collector.home, monkeypatch, capfd)


def test_causes_come_from_the_dashboard_while_the_cluster_lives(rayhistory: Command) -> None:
    """Only the driver knows that a worker died; Ray's GCS has it, and no event does."""
    tasks = {row["name"]: row for row in json.loads(rayhistory.good("tasks", "--json"))}
    assert {name: (row["state"], row["error_type"]) for name, row in tasks.items()} == {
        "load_rows": ("FAILED", "TASK_EXECUTION_EXCEPTION"),
        "crash": ("FAILED", "WORKER_DIED"),
        "succeed": ("FINISHED", None),
    }
    assert "row 17 has no label" in tasks["load_rows"]["error_message"]


def test_collector_logs_the_silent_driver_with_the_remedy(collector: CollectorProcess) -> None:
    (line,) = [line for line in collector.log() if line["event"].startswith(SILENT_DRIVER)]
    assert line["job"] == "01000000"
    assert REMEDY in line["event"]


def test_gaps_name_cause_and_remedy(rayhistory: Command) -> None:
    """The dashboard's list has no tasks that finished, so one task is left without a definition."""
    gaps = {gap["code"]: gap for gap in json.loads(rayhistory.good("gaps", "--json"))}
    gap = gaps[GapCode.TASK_WITHOUT_DEFINITION]
    assert (gap["count"], gap["loss"]) == (1, True)
    assert "driver did not export events" in gap["summary"]
    assert REMEDY in gap["remedy"]


def test_doctor_names_cause_and_remedy(rayhistory: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment that the driver was started in."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    assert REMEDY in rayhistory("doctor").out
