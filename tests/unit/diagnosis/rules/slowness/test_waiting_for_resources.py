"""Calls that wait for a busy actor, beside tasks that wait for CPUs."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.slowness.costs import example_function
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import TimeTotals


def session(waited_ms: int, **more: object) -> SessionFacts:
    """Return a session with ten calls of an actor that took 3 s each."""
    calls = example_function(function="Writer.write", type="ACTOR_TASK", count=10, total_ms=30_000,
                             waiting_ms=waited_ms, **more)  # fmt: skip
    return SessionFacts(functions=[calls], times=TimeTotals(tasks=10, waiting_actor_ms=waited_ms, running_ms=30_000))


def test_busy_actor_is_named() -> None:
    (found,) = diagnose(session(135_000)).findings
    assert found.code == "waiting_for_resources"
    assert found.headline == (
        "10 calls of Writer.write waited 13.5 s each on average, because their actor was busy with other calls"
    )
    assert "max_concurrency" in found.suggestion


@pytest.mark.parametrize("facts", [session(9_000), session(135_000, last_ms=1_800_000_001_000)])
def test_short_waits_are_no_finding(facts: SessionFacts) -> None:
    assert not diagnose(facts).findings
