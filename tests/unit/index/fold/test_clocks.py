"""States, ends and places are right whatever the clocks say, and however often something is reported."""

from pathlib import Path
from typing import Any

import pytest

from support.folding import as_lines, fold_session, put, rows
from support.skewed_events import (
    NODES,
    WORKERS,
    actor_export,
    alive_actor,
    dead_actor,
    ms,
    node_event,
    placed_task,
    restarting_actor,
    task_event,
)


def folded(directory: Path, query: str, *events: dict[str, Any]) -> list[tuple[Any, ...]]:
    put(directory, 0, as_lines(list(events)))
    return rows(directory, fold_session(directory, None), query)


ACTOR = "SELECT state, end_time_ms, json_extract_string(death_cause, '$.*.error_message')[1] FROM actors"


def test_revived_actor_has_the_cause_and_end_of_its_last_death(tmp_path: Path) -> None:
    events = [
        alive_actor(0), dead_actor(10, "out of scope"), restarting_actor(20, "LINEAGE_RECONSTRUCTION"), alive_actor(21),
        dead_actor(30, "killed"),
    ]  # fmt: skip
    assert folded(tmp_path, ACTOR, *events) == [("DEAD", ms(30), "killed")]


def test_actor_alive_after_lineage_reconstruction_has_no_death(tmp_path: Path) -> None:
    events = [alive_actor(0), dead_actor(10, "x"), restarting_actor(20, "LINEAGE_RECONSTRUCTION"), alive_actor(21)]
    assert folded(tmp_path, ACTOR, *events) == [("ALIVE", None, None)]


@pytest.mark.parametrize("restart", [[], [restarting_actor(5), alive_actor(6)]], ids=["once", "restarted"])
def test_dead_actor_is_dead_if_the_clock_was_set_back(tmp_path: Path, restart: list[dict[str, Any]]) -> None:
    events = [alive_actor(0), *restart, dead_actor(-3600, "killed")]
    assert folded(tmp_path, ACTOR, *events) == [("DEAD", ms(-3600), "killed")]


def test_repeated_report_of_a_death_does_not_move_it(tmp_path: Path) -> None:
    events = [alive_actor(0), dead_actor(10, "killed"), actor_export("DEAD", 40)]
    assert folded(tmp_path, ACTOR, *events) == [("DEAD", ms(10), "killed")]


def test_dead_node_is_dead_if_the_clock_was_set_back(tmp_path: Path) -> None:
    death = {"reason": "UNEXPECTED_TERMINATION", "reasonMessage": "lost"}
    events = [node_event("ALIVE", 0), node_event("DEAD", -3600, deathInfo=death)]
    found = folded(tmp_path, "SELECT state, end_time_ms, state_message FROM nodes", *events)
    assert found == [("DEAD", ms(-3600), "Unexpected termination: lost")]


def test_restart_in_events_and_export_files_counts_once(tmp_path: Path) -> None:
    events = [
        alive_actor(0), restarting_actor(10.7), actor_export("RESTARTING", 10.7), alive_actor(12),
        actor_export("ALIVE", 12), restarting_actor(60), actor_export("RESTARTING", 60), alive_actor(61),
    ]  # fmt: skip
    assert folded(tmp_path, "SELECT num_restarts FROM actors", *events) == [(2,)]


def test_restarts_in_export_files_alone_are_counted(tmp_path: Path) -> None:
    events = [actor_export(state, second) for second, state in enumerate(["ALIVE", "RESTARTING", "ALIVE"])]
    assert folded(tmp_path, "SELECT num_restarts, state FROM actors", *events) == [(1, "ALIVE")]


def test_place_of_an_actor_comes_from_one_report(tmp_path: Path) -> None:
    events = [alive_actor(0, 1), actor_export("ALIVE", 30, pid=555)]
    assert folded(tmp_path, "SELECT worker_id, pid FROM actors", *events) == [(None, 555)]


@pytest.mark.parametrize("later", [0, 1])
def test_place_of_an_attempt_comes_from_one_report(tmp_path: Path, later: int) -> None:
    """The ids are such that the highest node and the highest worker belong to different reports."""
    events = [placed_task(10 if place == later else 0, place, workerPid=100 + place) for place in (0, 1)]
    found = folded(tmp_path, "SELECT node_id, worker_id, worker_pid FROM tasks", *events)
    assert found == [(NODES[later], WORKERS[later], 100 + later)]


def test_process_of_the_executor_belongs_to_the_place_of_the_owner(tmp_path: Path) -> None:
    """Ray's owner reports node and worker, its executor only the process."""
    events = [placed_task(0, 0), task_event(1, "RUNNING", workerPid=7)]
    found = folded(tmp_path, "SELECT node_id, worker_id, worker_pid FROM tasks", *events)
    assert found == [(NODES[0], WORKERS[0], 7)]
