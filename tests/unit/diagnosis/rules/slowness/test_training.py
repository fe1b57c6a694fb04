"""Loops of Ray Train and Ray Data, by the metrics that they export."""

from array import array

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.node_samples import node_samples
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.metrics.samples import SampledSeries, Samples


def sampled(name: str, *values: float, **labels: str) -> SampledSeries:
    return SampledSeries(name, labels, array("d", values).tobytes())


def headlines(*series: SampledSeries, span_ms: int = 100_000) -> list[tuple[str, str]]:
    samples = node_samples([("ab" * 28, Samples(times=[0, span_ms], series=list(series)))])
    return [(each.code, each.headline) for each in diagnose(SessionFacts(samples=samples)).findings]


def rank(number: int, seconds: float) -> SampledSeries:
    return sampled("ray_train_report_total_blocked_time_s", 0, seconds, ray_train_worker_world_rank=str(number))


def test_loop_that_waits_for_data_leaves_its_resources_idle() -> None:
    found = headlines(
        sampled("ray_data_iter_total_blocked_seconds", 1, 30, dataset="a"),
        sampled("ray_data_iter_total_blocked_seconds", 1, 10, dataset="b"),
        sampled("ray_data_iter_total_seconds", 2, 60, dataset="a"),
        sampled("ray_data_iter_total_seconds", 2, 40, dataset="b"),
    )
    text = "Loops over Ray Data spent 40% of the time waiting for their next batch (40.0 s of 1 min 40 s)"
    assert found == [("idle_resources", text)]


def test_loop_that_rarely_waits_is_no_finding() -> None:
    assert not headlines(
        sampled("ray_data_iter_total_blocked_seconds", 1, 5), sampled("ray_data_iter_total_seconds", 2, 90)
    )


def test_training_that_waits_for_checkpoints_leaves_its_resources_idle() -> None:
    found = headlines(*(rank(number, 20.0) for number in range(3)))
    text = "Training spent 20% of the time on reports and checkpoints (20.0 s of 1 min 40 s)"
    assert found == [("idle_resources", text)]


def test_slow_rank_is_a_straggler() -> None:
    found = headlines(rank(0, 3.0), rank(1, 2.0), rank(2, 2.0), rank(3, 33.0), span_ms=600_000)
    assert [code for code, _ in found] == ["stragglers"]
    assert found[0][1].startswith("Training rank 3 spent 33.0 s")
