"""Kills by Ray's memory monitor: how much memory was used, and what the limit was."""

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples

DETAIL = (
    "3 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, ID: 5854) was "
    "2.67GB used / 23.54GB limit (0.113301) OOM kill reason: Memory usage 2848124928B exceeded threshold of "
    "2818139648B (11.2% of 25274793984B limit) Object store memory usage: [- objects spillable: 0"
)
"""As Ray 2.60 wrote it, with a threshold that was lowered to 11.2 %."""
KILLED = dead_example_worker(exit_type="NODE_OUT_OF_MEMORY", memory_used_bytes=5 << 30, exit_detail=DETAIL)
SAMPLES = {KILLED.node_id or "": NodeSamples(memory=[MemorySample(KILLED.end_ms or 0, 2 << 30, 25_274_793_984)])}


def test_headline_has_the_memory_that_ray_measured_and_its_threshold() -> None:
    """Samples may be some seconds old, and show less memory than the threshold."""
    found = diagnose(death_facts(KILLED, samples=SAMPLES)).findings[0]
    assert found.headline.endswith(
        "was killed by Ray's memory monitor when it used 5.0 GiB: node memory 2.7 GiB of 23.5 GiB, above the threshold "
        "of 2.6 GiB"
    )


def test_samples_show_the_memory_if_ray_does_not() -> None:
    worker = dead_example_worker(
        exit_type="NODE_OUT_OF_MEMORY", exit_detail="killed due to the node running low on memory"
    )
    found = diagnose(death_facts(worker, samples=SAMPLES)).findings[0]
    assert found.headline.endswith("node memory 2.0 GiB of 23.5 GiB")


def test_suggestion_is_code_that_can_be_pasted() -> None:
    found = diagnose(death_facts(KILLED)).findings[0]
    assert "@ray.remote(memory=6.4e9)." in found.suggestion
    assert KILLED.memory_used_bytes and 1.15 < 6.4e9 / KILLED.memory_used_bytes < 1.25
