"""Record one case of the corpus on a real Ray cluster: `python -m failures.recording CASE… --to DIRECTORY`.

Each case runs in a process of its own, because Ray's settings are environment variables.
"""

import argparse
import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from failures.cases import CASES, Case
from failures.memory_cgroup import can_limit_memory, memory_cgroup
from failures.two_nodes import record_on_two_nodes
from rayhistory.cli.local_ray.local_ray import LocalRay
from rayhistory.cli.local_ray.recording import RecordingOptions, start_recording
from rayhistory.errors import RayHistoryError
from rayhistory.sessions import SessionRef
from rayhistory.settings import CLI, resolve
from support import paths

CLUSTER = "failures"
JOB = "planted-job"
_JOBS = Path(__file__).parent / "jobs"
_STARTED_MESSAGE = "everything is under way"
_NO_EXPORT = ("env", "RAY_enable_core_worker_ray_event_to_aggregator=0")
"""The start of a command of a driver that exports no events. Its workers have the environment of their node."""
_TIMEOUT_S = 150
_METRICS_INTERVAL = "2s"


def record_case(name: str, directory: Path) -> None:
    """Record a case into `directory/store` and `directory/session.json`, or leave nothing.

    Raise PermissionError if this machine does not let us plant it.
    """
    case = CASES[name]
    if reason := _missing_privilege(case):
        raise PermissionError(reason)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [sys.executable, "-m", "failures.recording", name, "--in-process", "--to", str(directory)]
    environment = {**os.environ, **_environment(case), "PYTHONPATH": str(paths.ROOT / "tests")}
    with ExitStack() as stack:
        prefix = stack.enter_context(memory_cgroup(int(case.memory_limit_gib * 2**30))) if case.memory_limit_gib else []
        done = subprocess.run(
            [*prefix, *command], env=environment, capture_output=True, text=True, timeout=400, check=False
        )
    if done.returncode != 0:
        shutil.rmtree(directory, ignore_errors=True)
        raise RuntimeError(f"{name} was not recorded:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def _missing_privilege(case: Case) -> str:
    if case.other_node and os.geteuid() != 0:
        return "needs root, for the network namespaces of two nodes"
    if case.memory_limit_gib and not can_limit_memory():
        return "needs root and a memory controller, for the memory limit of a container"
    return ""


def _environment(case: Case) -> dict[str, str]:
    interval = _METRICS_INTERVAL if case.metrics else "0s"
    environment = {"RAYHISTORY_METRICS_INTERVAL": interval, **case.environment}
    if case.memory_headroom_gib:
        used, total = _memory()
        environment["RAY_memory_usage_threshold"] = f"{(used + case.memory_headroom_gib * 2**30) / total:.4f}"
    return environment


def _memory() -> tuple[int, int]:
    """Return the used and the total memory of this machine."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name.rstrip(":"): int(value) for name, value, *_ in lines}
    return (kib["MemTotal"] - kib["MemAvailable"]) << 10, kib["MemTotal"] << 10


async def _record(case: Case, directory: Path) -> None:
    settings, _ = resolve(CLI, {"setting_local_storage_dir": str(directory / "store")}, {})
    command = None if case.exports else _ray_without_system_config(directory)
    options = RecordingOptions([], settings, CLUSTER, num_cpus=4, ray_command=command)
    try:
        async with start_recording(options) as session:
            await asyncio.wait_for(_run(case, session.ray), _TIMEOUT_S)
            (directory / "session.json").write_bytes(msgspec.json.encode(session.ref))
            _end(case)
    except _HeadLost:
        _leave_as_vanished(directory / "store", session.ref)


def _ray_without_system_config(directory: Path) -> Path:
    """Return a `ray` command that leaves out the configuration with which all drivers export events."""
    command = directory / "bin" / "ray"
    command.parent.mkdir()
    kept = 'for each; do shift; case $each in --system-config=*) ;; *) set -- "$@" "$each" ;; esac; done'
    command.write_text(f'#!/bin/sh\n{kept}\nexec {shlex.quote(str(Path(sys.executable).with_name("ray")))} "$@"\n')
    command.chmod(0o755)
    return command


class _HeadLost(Exception):
    """Leaves the recording without an orderly end."""


def _end(case: Case) -> None:
    if case.ends == "lose_head":
        raise _HeadLost


async def _run(case: Case, ray: LocalRay) -> None:
    command = case.entrypoint or (sys.executable, str(_JOBS / f"{case.script}.py"), case.name)
    await ray.submit(command if case.exports else (*_NO_EXPORT, *command), JOB)
    if case.ends != "job":
        await _started(ray)
        await asyncio.sleep(4)
    if case.ends == "stop_job":
        await ray.stop_job(JOB)
    if case.ends == "lose_head":
        await asyncio.sleep(12)  # until everything has been shipped
        return
    details = await ray.wait(JOB)
    print(details["status"], details["message"])
    for number, job in enumerate(case.then, start=2):
        script, _, name = job.partition(".")
        await ray.submit([sys.executable, str(_JOBS / f"{script}.py"), name], f"{JOB}-{number}")
        await ray.wait(f"{JOB}-{number}")
    await asyncio.sleep(3)


async def _started(ray: LocalRay) -> None:
    async for text in ray.follow_output(JOB):
        if _STARTED_MESSAGE in text:
            return
    raise RayHistoryError("the job ended before it was under way")


def _leave_as_vanished(store: Path, ref: SessionRef) -> None:
    """Make the last sign of life old, as it is when somebody opens a session whose head was lost."""
    for path in store.rglob("alive"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[[], *CASES])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after this time")
    arguments = parser.parse_args()
    if arguments.in_process:
        case = CASES[arguments.cases[0]]
        if case.other_node:
            record_on_two_nodes(case, arguments.to)
        else:
            asyncio.run(_record(case, arguments.to))
        return
    started = time.monotonic()
    for name in arguments.cases or CASES:
        if time.monotonic() - started > arguments.seconds:
            return
        if not (arguments.to / name / "session.json").exists():
            begin = time.monotonic()
            try:
                record_case(name, arguments.to / name)
                print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{name}: FAILED\n{error}", flush=True)


if __name__ == "__main__":
    main()
