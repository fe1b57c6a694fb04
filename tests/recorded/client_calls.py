"""Calls of Ray's own clients on a live cluster and later on its history: commands and SDK functions."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from recorded.dashboard_requests import LISTS

_RUN_CLIENT_CALLS = Path(__file__).with_name("run_client_calls.py")
_OTHER_LISTS = ("objects", "runtime_envs", "cluster_events")
_IDS = {
    "tasks": "task_id",
    "actors": "actor_id",
    "nodes": "node_id",
    "workers": "worker_id",
    "placement_groups": "placement_group_id",
}
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Call(msgspec.Struct, frozen=True):
    """A function of `run_client_calls.py`, with its arguments after the address."""

    function: str
    arguments: list[Any]
    options: dict[str, Any] = {}

    @property
    def name(self) -> str:
        if self.function == "command":
            return " ".join(["ray", *self.arguments[0]])
        options = [f"{name}={value}" for name, value in self.options.items()]
        return f"{self.function}({', '.join([*map(str, self.arguments), *options])})"


def run_calls(python: str, *calls: tuple[str, Call], **variables: str) -> list[Any]:
    """Run calls with the Ray of an interpreter, each on its address; return their results."""
    done = subprocess.run(
        [python, _RUN_CLIENT_CALLS], input=msgspec.json.encode(calls).decode(),
        env=environment() | variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Any] = json.loads(done.stdout.rpartition("\n")[2])
    return results


def environment() -> dict[str, str]:
    """Return the environment without settings of Ray, of ours, and of proxies."""
    ours = ("RAY_", "RAYHISTORY_", "PYTHONPATH")
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(ours) and "proxy" not in name.lower()
    }
    return clean | {"COLUMNS": "400"}


def command(*argv: str) -> Call:
    return Call("command", [list(argv)])


def client_calls(rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[Call]:
    """Yield the calls that suit a cluster with these rows of each kind."""
    for kind in (*LISTS, *_OTHER_LISTS):
        listing = ("list", kind.replace("_", "-"))
        yield command(*listing)
        yield command(*listing, "--detail")
        yield from (Call("listed", [kind], {"detail": detail}) for detail in (False, True))
    yield command("list", "tasks", "--format", "json")
    yield command("list", "tasks", "--filter", "state=finished", "--filter", "type!=DRIVER_TASK")
    yield command("list", "tasks", "--filter", "name=nobody")
    yield command("list", "actors", "--filter", "class_name=Trainer", "--detail", "--format", "table")
    yield Call("listed", ["tasks"], {"filters": [["state", "=", "finished"], ["type", "!=", "DRIVER_TASK"]]})
    for kind, key in _IDS.items():
        for row in _one_of_each_state(rows[kind]):
            yield command("get", kind.replace("_", "-"), row[key])
            yield Call("got", [kind.removesuffix("s"), row[key]])
    for kind in ("tasks", "actors", "objects"):
        yield command("summary", kind)
        yield Call("summarized", [kind])
    yield from _job_calls(rows["jobs"])


def _one_of_each_state(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per state, without tasks of several attempts: Ray returns any of their attempts."""
    retried = {row["task_id"] for row in rows if row.get("attempt_number")}
    first = {row.get("state"): row for row in reversed(rows) if row.get("task_id") not in retried}
    return list(first.values())


def _job_calls(jobs: list[dict[str, Any]]) -> Iterator[Call]:
    yield Call("jobs", [])
    yield command("job", "list")
    yield command("job", "status", "nobody")
    ended = [job["submission_id"] for job in jobs if job["submission_id"] and job["status"] in _ENDED]
    # Only one job: following a finished job takes Ray seconds.
    yield from (command("job", "logs", job, "--follow") for job in ended[:1])
    for job in jobs:
        if name := job["submission_id"]:
            yield command("job", "status", name)
            yield command("job", "logs", name)
