"""Record a real Ray session: run a workload, store the live dashboard's responses, and end the cluster.

A recording is a directory: `store` is what the collector stored, `live.json` holds the responses of the dashboard after
the workload had settled, shortly before the end.
"""

import asyncio
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import pytest

from rayhistory.cli.local_ray.recording import RecordingOptions, start_recording
from rayhistory.ray_env import ALL_SPANS_SINCE, Version, parse_version
from rayhistory.sessions import SessionRef
from rayhistory.settings import CLI, resolve
from recorded import ray_versions
from recorded.client_calls import Call, client_calls, run_calls
from recorded.dashboard_requests import (
    LISTS,
    DashboardRequest,
    detail_requests,
    full_list,
    general_requests,
    library_requests,
)
from recorded.exported_profiles import unsent_profiles
from recorded.ray_versions import THIS_PYTHON
from recorded.shared import record_if_missing
from recorded.workloads import Workload, mixed
from support.reported_tasks import wait_until_reported

CLUSTER, VANISHED_CLUSTER = "recorded", "vanished"
_TASK_LISTING_DELAY_S = 5.0
"""Ray lists a task some seconds after it has run."""

_MAX_RECORDINGS = 2
"""A second one with unsent events is kept: then the loss is ours, and tests fail on it."""

_POLL_INTERVAL = "2s"
"""Interval of the collector's polls. Its last poll of datasets makes the dashboard run a task, which has to be over
before responses are recorded.
"""
_SETTLED_S = 5.0
"""A cluster without a change for so long has reported what it did."""

_SILENCE_S = 2.0
"""The last heartbeat of the vanished copy is so much older than the end of the other session. Then it has vanished from
the start, by the limit of `running_server`. With heartbeats of the same age, both would count as running for a while.
"""


class LiveResponse(msgspec.Struct, frozen=True):
    """The response of the live dashboard to one request."""

    request: DashboardRequest
    status: int
    text: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)


class ClientOutput(msgspec.Struct, frozen=True):
    """The result of one call of Ray's own clients."""

    call: Call
    result: Any


class Recording(msgspec.Struct, frozen=True):
    """A recording on disk, and the session in it."""

    directory: Path
    ref: SessionRef
    responses: dict[str, LiveResponse]
    outputs: list[ClientOutput]

    def __repr__(self) -> str:
        return f"Recorded({self.directory})"  # short, because pytest prints it

    @classmethod
    def load(cls, directory: Path) -> Self:
        stored = tuple[SessionRef, list[LiveResponse], list[ClientOutput]]
        ref, responses, outputs = msgspec.json.decode((directory / "live.json").read_bytes(), type=stored)
        return cls(directory, ref, {response.request.name: response for response in responses}, outputs)

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def live(self, path: str) -> Any:
        return self.responses[path].json

    @property
    def version(self) -> Version:
        return parse_version(self.live("/api/version")["ray_version"])

    @property
    def vanished(self) -> SessionRef:
        return SessionRef.checked(self.ref.namespace, VANISHED_CLUSTER, self.ref.session)


Recorder = Callable[[Path, str], None]
"""Fills a directory with a recording, using the Ray of an interpreter."""


def on_one_node(workload: Workload) -> Recorder:
    @functools.wraps(workload)
    def fill(directory: Path, python: str) -> None:
        asyncio.run(_record(directory, python, workload))

    return fill


MIXED = on_one_node(mixed)


def record_once(
    directory: Path, python: str = THIS_PYTHON, recorder: Recorder = MIXED, recordings: Path | None = None
) -> Recording:
    """Copy a recording from `recordings` into the directory; record it first if it is missing."""
    recordings = Path(os.environ.get("RAYHISTORY_TEST_RECORDING") or recordings or directory / "original")
    source = recordings / f"{ray_versions.name(python)}-{recorder.__name__}"
    record_if_missing(source, "live.json", lambda missing: record(missing, python, recorder))
    # Copied, because servers write indexes into the store.
    shutil.copytree(source / "store", directory / "store")
    shutil.copy2(source / "live.json", directory)
    return Recording.load(directory)


def record(directory: Path, python: str, recorder: Recorder) -> None:
    """Fill the directory with a complete recording, or leave nothing in it."""
    work = directory / "work"
    try:
        _record_again_if_unsent(work, python, recorder)
        _add_vanished(work / "store")
        for name in ("store", "live.json"):
            (work / name).rename(directory / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _record_again_if_unsent(work: Path, python: str, recorder: Recorder) -> None:
    for _ in range(_MAX_RECORDINGS):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        recorder(work, python)
        recorded = Recording.load(work)
        tasks = recorded.live(full_list("tasks"))["data"]["result"]["result"]
        if recorded.version < ALL_SPANS_SINCE or not unsent_profiles(work / "store", tasks):
            return


async def _record(directory: Path, python: str, workload: Workload) -> None:
    arguments = {"setting_local_storage_dir": str(directory / "store")}
    settings, _ = resolve(CLI, arguments, {})
    options = RecordingOptions([], settings, CLUSTER, num_cpus=4, ray_command=ray_versions.ray_command(python))
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("RAY_COLLECTOR_POLL_INTERVAL", _POLL_INTERVAL)
        await _record_workload(directory, python, workload, options)


async def _record_workload(directory: Path, python: str, workload: Workload, options: RecordingOptions) -> None:
    async with start_recording(options) as session:
        await workload(session.ray, python)
        await session.settle()
        await wait_until_reported(session.ray.dashboard_url)
        _check_export(session.ray.session_dir)
        responses = await _responses(session.ray.dashboard_url)
        outputs = await asyncio.to_thread(_client_outputs, session.ray.dashboard_url, python, responses)
        (directory / "live.json").write_bytes(msgspec.json.encode((session.ref, responses, outputs)))


def _check_export(session: Path) -> None:
    """Check that Ray exports events: it gives up when its agent does not start within half a minute."""
    log = session / "logs" / "gcs_server.err"
    assert not log.exists() or "will not be exported" not in log.read_text(), "the machine is too busy for Ray"


async def encoded_responses(dashboard: str) -> bytes:
    """Return all responses as JSON, for a process in another network namespace."""
    return msgspec.json.encode(await _responses(dashboard))


async def _responses(dashboard: str) -> list[LiveResponse]:
    async with httpx.AsyncClient(base_url=dashboard, trust_env=False, timeout=60) as http:

        async def send(request: DashboardRequest) -> LiveResponse:
            response = await http.request(request.method, request.uncached, headers=request.headers)
            return LiveResponse(request, response.status_code, response.text)

        await _wait_until_settled(http)
        lists = {path: (await send(DashboardRequest(path))).json for path in ("/logical/actors", "/api/jobs/")}
        responses = [await send(request) for request in library_requests(lists)]
        if responses:  # the dashboard has run tasks for them
            await asyncio.sleep(_TASK_LISTING_DELAY_S)
            await _wait_until_settled(http)
        responses += [await send(request) for request in general_requests()]
        bodies = {each.request.name: each.json for each in responses if each.status == 200}
        return responses + [await send(request) for request in detail_requests(bodies)]


async def _wait_until_settled(http: httpx.AsyncClient) -> None:
    """Wait until tasks and used resources have not changed for seconds: Ray reports both late on a busy machine."""
    earlier = None
    while (now := await _tasks_and_resources(http)) != earlier:
        earlier = now
        await asyncio.sleep(_SETTLED_S)


async def _tasks_and_resources(http: httpx.AsyncClient) -> tuple[Any, Any]:
    tasks, nodes = [(await http.get(path)).json()["data"] for path in (full_list("tasks"), "/nodes?view=summary")]
    return tasks["result"]["result"], nodes["nodeLogicalResources"]


def _client_outputs(dashboard: str, python: str, responses: list[LiveResponse]) -> list[ClientOutput]:
    by_name = {response.request.name: response for response in responses}
    rows = {kind: by_name[full_list(kind)].json["data"]["result"]["result"] for kind in LISTS}
    calls = list(client_calls(rows))
    results = run_calls(python, *((dashboard, call) for call in calls))
    return [ClientOutput(call, result) for call, result in zip(calls, results, strict=True)]


def _add_vanished(store: Path) -> None:
    """Copy the session to another cluster's name without its end, as if its node had been lost."""
    names = {CLUSTER: VANISHED_CLUSTER, f"default_{CLUSTER}": f"default_{VANISHED_CLUSTER}"}
    for path in sorted(store.rglob("*")):
        parts = path.relative_to(store).parts
        if not path.is_file() or not set(parts) & set(names):
            continue
        if "seals" in parts:
            continue
        copy = store.joinpath(*(names.get(part, part) for part in parts))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "end.json":
            copy = copy.with_name("alive")
            copy.touch()
            heartbeat_s = path.stat().st_mtime - _SILENCE_S
            os.utime(copy, (heartbeat_s, heartbeat_s))
        else:
            shutil.copy2(path, copy)
