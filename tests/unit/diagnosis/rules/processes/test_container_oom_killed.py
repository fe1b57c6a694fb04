"""Deaths while the memory of a container was full, by the samples around them."""

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.processes.container_oom_killed import RULE
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, SessionFacts

FACTS = RULE.example.facts
(WORKER,) = FACTS.workers
DIED_MS = WORKER.end_ms or 0


def codes(*memory: tuple[int, float]) -> list[str]:
    """Return what is found for GiB in use of 4, by milliseconds after the death."""
    samples = NodeSamples(cgroup_memory=[MemorySample(DIED_MS + at_ms, used, 4.0) for at_ms, used in memory])
    facts: SessionFacts = msgspec.structs.replace(FACTS, samples={WORKER.node_id: samples})
    return [finding.code for finding in diagnose(facts).findings]


@pytest.mark.parametrize("at_ms", [-59_000, -2_000, 0, 900, 5_000])
def test_full_memory_around_a_death_explains_it(at_ms: int) -> None:
    """A sample after the death may have been measured before it."""
    assert RULE.code in codes((-60_500, 1.0), (at_ms, 4.0), (7_000, 1.0))


@pytest.mark.parametrize("at_ms", [-61_000, 6_000])
def test_full_memory_long_before_or_after_a_death_does_not_explain_it(at_ms: int) -> None:
    assert RULE.code not in codes((-2_000, 3.6), (at_ms, 4.0))


def test_suggestion_has_numbers() -> None:
    found = diagnose(FACTS).findings[0]
    assert "Give the container more memory, such as 9.6 GiB instead of 8.0 GiB" in found.suggestion
