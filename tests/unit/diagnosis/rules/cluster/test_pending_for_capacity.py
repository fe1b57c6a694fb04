"""Tasks that wait are only said to wait for resources if these were in use."""

from array import array

import msgspec

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.node_samples import node_samples
from rayhistory.diagnosis.rules.cluster.pending_for_capacity import RULE
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.metrics.samples import SampledSeries, Samples

FACTS = RULE.example.facts  # a task that waits for 2 CPUs for 12 s
SINCE = FACTS.waiting[0].since_ms or 0


def verdict(*available: float, name: str = "CPU", every_ms: int = 2_000) -> str | None:
    """Return the code of the verdict if a node had these resources available since the task waits."""
    times = [SINCE + every_ms * number for number in range(len(available))]
    free = SampledSeries("ray_resources", {"Name": name, "State": "AVAILABLE"}, array("d", available).tobytes())
    used = SampledSeries("ray_resources", {"Name": name, "State": "USED"}, array("d", [9.0] * len(times)).tobytes())
    samples = node_samples([("ef" * 28, Samples(times=times, series=[used, free]))])
    facts: SessionFacts = msgspec.structs.replace(FACTS, samples=samples)
    found = diagnose(facts).verdict
    return found.code if found else None


def test_task_waits_for_resources_that_were_in_use_for_some_of_the_time() -> None:
    assert verdict(3, 1, 3) == RULE.code


def test_task_that_waits_beside_free_resources_waits_for_something_else() -> None:
    assert verdict(3, 3, 2) == "driver_exception"


def test_one_sample_is_no_proof() -> None:
    assert verdict(3) == RULE.code


def test_samples_of_other_times_and_resources_are_no_proof() -> None:
    assert verdict(3, 3, 3, name="GPU") == RULE.code
    assert verdict(3, 3, 3, every_ms=60_000) == RULE.code
