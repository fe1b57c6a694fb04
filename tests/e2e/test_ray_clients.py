"""Ray's own command line and SDKs on dead sessions, by every address of a session."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK

from rayhistory.sessions import Layout
from recorded import ray_versions
from recorded.client_calls import Call, environment, run_calls
from recorded.ray_versions import PYTHONS, THIS_PYTHON
from recorded.recorder import Recording
from recorded.workloads import FAILING, RUNNING, SAMPLE
from support.server_process import running_server

OWNER = "nightly-training"
KINDS = ("tasks", "actors", "nodes", "workers", "placement_groups", "jobs")
KEYS = {
    "tasks": ("task_id", "attempt_number"),
    "actors": ("actor_id",),
    "nodes": ("node_id",),
    "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
    "jobs": ("submission_id", "job_id"),
}


def call(name: str, address: str, *arguments: Any, **options: Any) -> tuple[str, Call]:
    return address, Call(name, list(arguments), options)


@pytest.fixture(scope="module")
def server(recorded: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the recorded session as one of a RayJob."""
    store = tmp_path_factory.mktemp("owned") / "store"
    shutil.copytree(recorded.store, store)
    owned, layout = msgspec.structs.replace(recorded.ref, owner_kind="rayjob", owner_name=OWNER), Layout()
    for key in (layout.history_prefix, layout.metadata_key):
        (store / key(owned)).parent.mkdir(parents=True, exist_ok=True)
        (store / key(recorded.ref)).rename(store / key(owned))
    with running_server(store, tmp_path_factory.mktemp("server-of-owned")) as address:
        yield address


@pytest.fixture(scope="module")
def addresses(server: str, recorded: Recording) -> dict[str, str]:
    cluster = f"{server}/s/{recorded.ref.namespace}/{recorded.ref.cluster}"
    return {
        "the session": f"{cluster}/{recorded.ref.session}",
        "the session, with a slash": f"{cluster}/{recorded.ref.session}/",
        "latest": f"{cluster}/latest",
        "live": f"{cluster}/live",
        "the owner": f"{server}/s/{recorded.ref.namespace}/~rayjob/{OWNER}",
        "latest of the owner": f"{server}/s/{recorded.ref.namespace}/~rayjob/{OWNER}/latest",
    }


@pytest.fixture(params=PYTHONS, ids=ray_versions.name)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ids(kind: str, rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(row[key] for key in KEYS[kind]) for row in rows}


def live_rows(recorded: Recording, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = recorded.live(f"/api/v0/{kind}?detail=1&limit=10000")["data"]["result"]["result"]
    return rows


def test_every_address_works_with_every_client(python: str, addresses: dict[str, str], recorded: Recording) -> None:
    results = run_calls(
        python,
        *(
            each
            for address in addresses.values()
            for each in (
                call("listed", address, "tasks", detail=True),
                call("jobs", address),
                call("tailed", address, SAMPLE),
                call("command", address, ["list", "nodes"]),
                call("command", address, ["job", "status", SAMPLE]),
            )
        ),
    )
    log = recorded.live(f"/api/jobs/{SAMPLE}/logs")["logs"]
    for number, name in enumerate(addresses):
        tasks, jobs, tailed, nodes, status = results[number * 5 : number * 5 + 5]
        assert ids("tasks", tasks) >= ids("tasks", live_rows(recorded, "tasks")), name
        assert jobs["status"] == {SAMPLE: "SUCCEEDED", FAILING: "FAILED", RUNNING: "STOPPED"}, name
        assert jobs["logs"][SAMPLE] == tailed == log, name
        assert (nodes["code"], "Total: 1" in nodes["out"]) == (0, True), name
        assert (status["code"], "succeeded" in status["out"]) == (0, True), name


def test_rayhistory_address_takes_the_server_from_the_environment(server: str, recorded: Recording) -> None:
    """Ray's clients resolve an address with the module named by its scheme."""
    owner = f"rayhistory://{recorded.ref.namespace}/~rayjob/{OWNER}"
    short = f"rayhistory://{recorded.ref.namespace}/{recorded.ref.cluster}"
    actors, tailed, listed = run_calls(
        THIS_PYTHON,
        call("listed", short, "actors"),
        call("tailed", short, FAILING),
        call("command", owner, ["job", "list"]),
        RAYHISTORY_SERVER=server,
    )
    assert ids("actors", actors) == ids("actors", live_rows(recorded, "actors"))
    assert tailed == recorded.live(f"/api/jobs/{FAILING}/logs")["logs"]
    assert SAMPLE in listed["out"]


def test_lists_pass_the_validation_of_the_sdk(python: str, addresses: dict[str, str], recorded: Recording) -> None:
    """Ray's client validates each row, and that the list is complete."""
    address = addresses["latest"]
    results = run_calls(
        python,
        *(call("listed", address, kind, detail=detail) for kind in KINDS for detail in (False, True)),
        *(call("listed", address, kind) for kind in ("objects", "runtime_envs", "cluster_events")),
        *(call("summarized", address, kind) for kind in ("tasks", "actors", "objects")),
    )
    for kind, plain, detailed in zip(KINDS, results[0:12:2], results[1:12:2], strict=True):
        assert ids(kind, plain) == ids(kind, detailed) >= ids(kind, live_rows(recorded, kind))
    assert results[15]["cluster"]["total_tasks"] > 0
    assert results[16]["cluster"]["total_actors"] == len(live_rows(recorded, "actors"))


def test_filters_and_single_rows_work_as_on_a_live_cluster(
    python: str, addresses: dict[str, str], recorded: Recording
) -> None:
    address = addresses["latest"]
    task, actor = live_rows(recorded, "tasks")[0], live_rows(recorded, "actors")[0]
    failed, with_task, with_actor, none = run_calls(
        python,
        call("listed", address, "tasks", filters=[("state", "=", "failed"), ("type", "!=", "DRIVER_TASK")]),
        call("got", address, "task", task["task_id"]),
        call("got", address, "actor", actor["actor_id"]),
        call("listed", address, "tasks", filters=[("name", "=", "nobody")]),
    )
    assert {row["state"] for row in failed} == {"FAILED"}
    found = with_task if isinstance(with_task, dict) else with_task[0]
    assert (found["task_id"], found["name"]) == (task["task_id"], task["name"])
    assert (with_actor["actor_id"], with_actor["class_name"]) == (actor["actor_id"], actor["class_name"])
    assert none == []


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["list", "tasks", "--filter", "state=FINISHED", "--limit", "3"], "Stats:"),
        (["list", "actors", "--detail", "--format", "json"], '"actor_id"'),
        (["summary", "tasks"], "SUMMARY" ),
        (["job", "list"], SAMPLE),
        (["job", "logs", SAMPLE, "--follow"], "succeeded"),
        (["job", "logs", FAILING], "Running entrypoint for job"),
    ],
)  # fmt: skip
def test_ray_command_prints(python: str, addresses: dict[str, str], argv: list[str], output: str) -> None:
    command: list[str | Path] = [Path(python).with_name("ray"), *argv, "--address", addresses["the owner"]]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert output.lower() in (done.stdout + done.stderr).lower()


@pytest.mark.parametrize("argv", [["list", "tasks"], ["job", "list"]], ids="-".join)
def test_address_of_the_server_alone_gets_the_addresses_of_sessions(
    server: str, addresses: dict[str, str], recorded: Recording, argv: list[str]
) -> None:
    """Everybody tries this first. Ray's command prints the error, and the addresses in it work."""
    command: list[str | Path] = [Path(THIS_PYTHON).with_name("ray"), *argv, "--address", server]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    listed = re.findall(r'http://\S+/s/[^\s,"]+', done.stderr.partition("use the address of a session:")[2])
    # The vanished session is listed first as long as its last heartbeat is fresh.
    assert sorted(listed) == sorted([addresses["the session"], f"{server}{recorded.vanished.url.rstrip('/')}"])


def test_writing_calls_are_refused_with_a_reason(python: str, addresses: dict[str, str]) -> None:
    address = addresses["the session"]
    submitted, stopped, deleted, unknown = run_calls(
        python,
        call("changed", address),
        call("command", address, ["job", "stop", SAMPLE]),
        call("command", address, ["job", "delete", SAMPLE]),
        call("command", address, ["job", "logs", "nobody"]),
    )
    assert "405" in submitted
    assert "the history server is read-only" in submitted
    for refused in (stopped, deleted):
        assert refused["code"] != 0
        assert "the history server is read-only" in refused["error"]
    assert "nobody does not exist" in unknown["error"]


SLOW_TO_VANISH = "import os; os.environ['RAYHISTORY_VANISHED_AFTER'] = '600s'"


def test_output_of_a_running_job_is_followed_until_the_session_ends(recorded: Recording, tmp_path: Path) -> None:
    """A fresh heartbeat makes the vanished session a running one, whose job keeps writing."""
    store, ref, layout = tmp_path / "store", recorded.vanished, Layout()
    shutil.copytree(recorded.store, store)
    (store / layout.alive_key(ref)).touch()
    (log,) = (store / layout.history_prefix(ref)).rglob(f"job-driver-{RUNNING}.log")

    async def follow(address: str) -> str:
        url = f"{address.replace('http:', 'ws:')}{ref.url}api/jobs/{RUNNING}/logs/tail"
        text, log_text = "", log.read_text()
        async with asyncio.timeout(120), connect(url, proxy=None) as socket:
            while text != log_text:
                text += str(await socket.recv())
            log.write_text(log_text + "one more line\n")
            text += str(await socket.recv())
            (store / layout.end_key(ref)).write_bytes(b'{"ended_ms": 1}')
            with pytest.raises(ConnectionClosedOK):
                await socket.recv()
        return text.removeprefix(log_text)

    with running_server(store, tmp_path / "server", at_start=SLOW_TO_VANISH) as address:
        assert asyncio.run(follow(address)) == "one more line\n"
