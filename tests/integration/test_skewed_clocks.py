"""A session whose nodes' clocks disagree: what the library and the tools of agents say still fits together."""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rayhistory
from rayhistory.api.history import History
from rayhistory.mcp.protocol import respond
from support.recorded_sample import DATA, REF, settings_for, store_indexed_sample, store_sample

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
FAILED = "state = FAILED and closed_by_history = false and type != DRIVER_TASK"
WORKERS_S, GCS_S = -3_600, 86_400
"""By how much the clocks of workers, and of the head's GCS, are wrong. Drivers have the right time."""


def skewed(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as a process with a wrong clock would have sent it."""
    text = json.dumps(event)
    is_executor = event["eventType"] == "TASK_PROFILE_EVENT" or '"RUNNING"' in text
    seconds = GCS_S if event["sourceType"] == "GCS" else WORKERS_S if is_executor else 0

    def moved(match: re.Match[str]) -> str:
        whole, _, fraction = match[0].rstrip("Z").partition(".")
        return f"{(datetime.fromisoformat(whole) + timedelta(seconds=seconds)).isoformat()}.{fraction}Z"

    def moved_ns(match: re.Match[str]) -> str:
        return f'"{match[1]}": "{int(match[2]) + seconds * 10**9}"'

    moved_text = re.sub(r'"(startTime|endTime)": "(\d{19})"', moved_ns, TIME.sub(moved, text))
    found: dict[str, Any] = json.loads(moved_text)
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("skewed")
    store_sample(settings_for(directory))
    (events,) = (directory / "store").rglob("node_events/*")
    lines = map(json.loads, (DATA / "events.jsonl").read_text().splitlines())
    events.write_text("".join(json.dumps(skewed(line)) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYHISTORY_CACHE_DIR", str(directory / "cache"))
        with rayhistory.connect(directory / "store") as history:
            yield history


def call(history: History, tool: str, **arguments: Any) -> str:
    """Return the answer of a tool."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    reply = history._loop.run(respond(msgspec.json.encode(message), history._history))
    assert reply is not None
    assert not reply["result"]["isError"], reply
    return str(reply["result"]["content"][0]["text"])


def number_after(text: str, words: str) -> int:
    found = re.search(rf"{re.escape(words)}\D{{0,3}}(\d+)", text)
    assert found, text
    return int(found[1])


def test_library_and_tools_agree_about_what_failed(history: History) -> None:
    run = history.session()
    tasks = run.tasks().to_list()
    assert sorted(run.tasks().to_arrow().to_pylist(), key=repr) == sorted(tasks, key=repr)
    (counted,) = run.sql("select count(*) as n, count(*) filter (state = 'FAILED') as failed from tasks")
    assert (counted["n"], counted["failed"]) == (len(tasks), sum(row["state"] == "FAILED" for row in tasks))
    failed = len(run.tasks(FAILED))
    assert failed > 0
    overview = call(history, "get_overview")
    assert (number_after(overview, "tasks"), number_after(overview, "failed tasks")) == (len(tasks), failed)
    assert f"{failed} failed task attempts" in call(history, "get_failures")
    code = run.diagnose()["verdict"]["code"]
    assert f"verdict {code}" in call(history, "diagnose")


def states(history: History) -> dict[tuple[str, int], str]:
    return {(row["task_id"], row["attempt_number"]): row["state"] for row in history.session().tasks()}


def test_states_are_those_with_right_clocks(history: History, tmp_path: Path) -> None:
    """The highest state that was reported counts, not the latest by a clock."""
    store_indexed_sample(settings_for(tmp_path))
    with rayhistory.connect(tmp_path / "store") as right:
        assert states(history) == states(right)


@pytest.mark.parametrize("sort", ["start_time_ms", "-start_time_ms", "-end_time_ms", "creation_time_ms"])
def test_pages_by_time_have_every_row_once(history: History, sort: str) -> None:
    run = history.session()
    keys = [(row["task_id"], row["attempt_number"]) for row in run.tasks(sort=sort, columns="task_id,attempt_number")]
    assert len(set(keys)) == len(keys) == len(run.tasks())


def test_times_are_in_order_and_within_the_session(history: History) -> None:
    run = history.session()
    overview = run.overview()
    assert overview["started_ms"] <= overview["last_ms"]
    assert all(overview["started_ms"] <= each["at_ms"] <= overview["last_ms"] for each in overview["failures"])
    times = [int(at) for at in re.findall(r"\b(\d{13})\b", call(history, "timeline").partition("events in order")[2])]
    assert times == sorted(times)


def test_session_as_of_a_time_grows_to_the_whole(history: History) -> None:
    run = history.session()
    overview = run.overview()
    start, last = overview["started_ms"], overview["last_ms"]

    def known(at_ms: int) -> set[tuple[str, int]]:
        rows = history.session(f"{REF.path}@{at_ms}").tasks(columns="task_id,attempt_number")
        return {(row["task_id"], row["attempt_number"]) for row in rows}

    some, everything = known((start + last) // 2), known(last)
    assert some <= everything
    assert everything == {(row["task_id"], row["attempt_number"]) for row in run.tasks()}
