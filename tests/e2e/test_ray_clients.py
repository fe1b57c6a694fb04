"""Ray's own command line and SDKs, on sessions whose cluster is gone, by every address that a session has."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK

from rayhistory.layout import Layout
from recorded import rays
from recorded.commands import Call, asked, environment
from recorded.rays import HERE, PYTHONS
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import FAILING, RUNNING, SAMPLE

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
def server(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The recorded session, as one that a RayJob had."""
    store = tmp_path_factory.mktemp("owned") / "store"
    shutil.copytree(recorded.store, store)
    owned, layout = msgspec.structs.replace(recorded.ref, owner_kind="rayjob", owner_name=OWNER), Layout()
    for place in (layout.history_prefix, layout.metadata_key):
        (store / place(owned)).parent.mkdir(parents=True, exist_ok=True)
        (store / place(recorded.ref)).rename(store / place(owned))
    with serving(store, tmp_path_factory.mktemp("server-of-owned")) as address:
        yield address


@pytest.fixture(scope="module")
def addresses(server: str, recorded: Recorded) -> dict[str, str]:
    cluster = f"{server}/s/{recorded.ref.namespace}/{recorded.ref.cluster}"
    return {
        "the session": f"{cluster}/{recorded.ref.session}",
        "the session, with a slash": f"{cluster}/{recorded.ref.session}/",
        "latest": f"{cluster}/latest",
        "live": f"{cluster}/live",
        "the owner": f"{server}/s/{recorded.ref.namespace}/~rayjob/{OWNER}",
        "latest of the owner": f"{server}/s/{recorded.ref.namespace}/~rayjob/{OWNER}/latest",
    }


@pytest.fixture(params=PYTHONS, ids=rays.name)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ids(kind: str, rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(row[key] for key in KEYS[kind]) for row in rows}


def live_rows(recorded: Recorded, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = recorded.live(f"/api/v0/{kind}?detail=1&limit=10000")["data"]["result"]["result"]
    return rows


def test_every_address_leads_every_client_to_the_session(
    python: str, addresses: dict[str, str], recorded: Recorded
) -> None:
    answers = asked(
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
        tasks, jobs, tailed, nodes, status = answers[number * 5 : number * 5 + 5]
        assert ids("tasks", tasks) >= ids("tasks", live_rows(recorded, "tasks")), name
        assert jobs["status"] == {SAMPLE: "SUCCEEDED", FAILING: "FAILED", RUNNING: "STOPPED"}, name
        assert jobs["logs"][SAMPLE] == tailed == log, name
        assert (nodes["code"], "Total: 1" in nodes["out"]) == (0, True), name
        assert (status["code"], "succeeded" in status["out"]) == (0, True), name


def test_an_address_of_our_own_needs_no_server_in_it(server: str, recorded: Recorded) -> None:
    """Ray's clients ask the module that the address begins with where to go."""
    owner = f"rayhistory://{recorded.ref.namespace}/~rayjob/{OWNER}"
    short = f"rayhistory://{recorded.ref.namespace}/{recorded.ref.cluster}"
    actors, tailed, listed = asked(
        HERE,
        call("listed", short, "actors"),
        call("tailed", short, FAILING),
        call("command", owner, ["job", "list"]),
        RAYHISTORY_SERVER=server,
    )
    assert ids("actors", actors) == ids("actors", live_rows(recorded, "actors"))
    assert tailed == recorded.live(f"/api/jobs/{FAILING}/logs")["logs"]
    assert SAMPLE in listed["out"]


def test_every_list_of_the_sdk_passes_its_validation(
    python: str, addresses: dict[str, str], recorded: Recorded
) -> None:
    """Ray's client checks each row, and that nothing was left out."""
    address = addresses["latest"]
    answers = asked(
        python,
        *(call("listed", address, kind, detail=detail) for kind in KINDS for detail in (False, True)),
        *(call("listed", address, kind) for kind in ("objects", "runtime_envs", "cluster_events")),
        *(call("summarized", address, kind) for kind in ("tasks", "actors", "objects")),
    )
    for kind, plain, detailed in zip(KINDS, answers[0:12:2], answers[1:12:2], strict=True):
        assert ids(kind, plain) == ids(kind, detailed) >= ids(kind, live_rows(recorded, kind))
    assert answers[15]["cluster"]["total_tasks"] > 0
    assert answers[16]["cluster"]["total_actors"] == len(live_rows(recorded, "actors"))


def test_filters_and_single_rows_are_given_as_by_a_live_cluster(
    python: str, addresses: dict[str, str], recorded: Recorded
) -> None:
    address = addresses["latest"]
    task, actor = live_rows(recorded, "tasks")[0], live_rows(recorded, "actors")[0]
    failed, with_task, with_actor, none = asked(
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
    ("argv", "said"),
    [
        (["list", "tasks", "--filter", "state=FINISHED", "--limit", "3"], "Stats:"),
        (["list", "actors", "--detail", "--format", "json"], '"actor_id"'),
        (["summary", "tasks"], "SUMMARY" ),
        (["job", "list"], SAMPLE),
        (["job", "logs", SAMPLE, "--follow"], "succeeded"),
        (["job", "logs", FAILING], "Running entrypoint for job"),
    ],
)  # fmt: skip
def test_the_real_command_prints(python: str, addresses: dict[str, str], argv: list[str], said: str) -> None:
    """As processes, as people call them."""
    command = [Path(python).with_name("ray"), *argv, "--address", addresses["the owner"]]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert said.lower() in (done.stdout + done.stderr).lower()


def test_what_would_change_a_dead_cluster_is_refused_with_a_reason(python: str, addresses: dict[str, str]) -> None:
    address = addresses["the session"]
    submitted, stopped, deleted, unknown = asked(
        python,
        call("changed", address),
        call("command", address, ["job", "stop", SAMPLE]),
        call("command", address, ["job", "delete", SAMPLE]),
        call("command", address, ["job", "logs", "nobody"]),
    )
    assert "405" in submitted
    assert "this is history, and can only be read" in submitted
    for refused in (stopped, deleted):
        assert refused["code"] != 0
        assert "this is history" in refused["error"]
    assert "nobody does not exist" in unknown["error"]


SLOW_TO_VANISH = "import os; os.environ['RAYHISTORY_VANISHED_AFTER'] = '600s'"


def test_the_output_of_a_job_that_runs_is_followed_until_its_session_ends(recorded: Recorded, tmp_path: Path) -> None:
    """The session that vanished lives again as long as it gives signs of life, and its job writes on."""
    store, ref, layout = tmp_path / "store", recorded.vanished, Layout()
    shutil.copytree(recorded.store, store)
    (store / layout.alive_key(ref)).touch()
    (log,) = (store / layout.history_prefix(ref)).rglob(f"job-driver-{RUNNING}.log")

    async def follow(address: str) -> str:
        url = f"{address.replace('http:', 'ws:')}{ref.url}api/jobs/{RUNNING}/logs/tail"
        text, written = "", log.read_text()
        async with asyncio.timeout(120), connect(url, proxy=None) as socket:
            while text != written:
                text += str(await socket.recv())
            log.write_text(written + "one more line\n")
            text += str(await socket.recv())
            (store / layout.end_key(ref)).write_bytes(b'{"ended_ms": 1}')
            with pytest.raises(ConnectionClosedOK):
                await socket.recv()
        return text.removeprefix(written)

    with serving(store, tmp_path / "server", at_start=SLOW_TO_VANISH) as address:
        assert asyncio.run(follow(address)) == "one more line\n"
