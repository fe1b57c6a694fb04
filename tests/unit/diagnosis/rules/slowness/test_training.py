"""Loops of Ray Train and Ray Data, by the metrics that they export."""

from array import array

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.node_samples import node_samples
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.metrics.samples import SampledSeries, Samples

TIMES = [0, 2_000, 100_000, 102_000]


def sampled(name: str, *values: float, **labels: str) -> SampledSeries:
    return SampledSeries(f"ray_{name}", labels, array("d", values).tobytes())


def headlines(*series: SampledSeries) -> list[tuple[str, str]]:
    samples = node_samples([("ab" * 28, Samples(times=TIMES, series=list(series)))])
    return [(each.code, each.headline) for each in diagnose(SessionFacts(samples=samples)).findings]


def rank(number: int, waited: float, stored: float = 0.0, run: str = "a", old: bool = False) -> list[SampledSeries]:
    """Return the series of a rank. Ray sets them to 0 when the run ends."""
    labels = {"ray_train_worker_world_rank": str(number), "ray_train_run_id": run,
              "ray_train_worker_actor_id": f"{run}-{number}"}  # fmt: skip
    values = {"report_total_blocked": waited + stored, "checkpoint_sync_total": waited,
              "checkpoint_transfer_total": stored}  # fmt: skip
    return [
        sampled(f"train_{name}_time_s", 0, 0, value, 0, **labels)
        for name, value in values.items()
        if not old or name == "report_total_blocked"
    ]


def test_loop_that_waits_for_data_leaves_its_resources_idle() -> None:
    found = headlines(
        sampled("data_iter_total_blocked_seconds", 1, 10, 30, 30, dataset="a"),
        sampled("data_iter_total_blocked_seconds", 1, 5, 10, 10, dataset="b"),
        sampled("data_iter_user_seconds", 2, 30, 30, 30, dataset="a"),
        sampled("data_iter_user_seconds", 2, 30, 30, 30, dataset="b"),
        sampled("data_iter_total_seconds", 0, 0, 0, 0, dataset="a"),  # 0 until the loop ends
    )
    text = "Loops over Ray Data spent 40% of the time waiting for their next batch (40.0 s of 1 min 40 s)"
    assert found == [("idle_resources", text)]


def test_loop_that_rarely_waits_is_no_finding() -> None:
    assert not headlines(
        sampled("data_iter_total_blocked_seconds", 1, 2, 5, 5), sampled("data_iter_user_seconds", 2, 50, 90, 90)
    )


def test_training_that_stores_large_checkpoints_leaves_its_resources_idle() -> None:
    found = headlines(*rank(0, 0.1, 20), *rank(1, 0.2, 20), *rank(2, 0, 20))
    text = "Training spent 20% of the time storing checkpoints (20.0 s of 1 min 40 s)"
    assert found == [("idle_resources", text)]


def test_waiting_of_even_ranks_is_no_finding() -> None:
    assert not headlines(*rank(0, 9, 1), *rank(1, 8, 1), *rank(2, 10, 1))


def test_rank_for_which_the_others_wait_is_a_straggler() -> None:
    found = headlines(*rank(0, 80), *rank(1, 0.2), *rank(2, 79))
    text = "Training rank 1 needed 1 min 40 s; the median of 3 ranks was 21.0 s, and the other ranks waited"
    assert found == [("stragglers", text)]


def test_slow_rank_is_found_without_metrics_of_new_versions() -> None:
    found = headlines(*rank(0, 80, old=True), *rank(1, 0.2, old=True), *rank(2, 79, old=True))
    assert [code for code, _ in found] == ["stragglers"]


def test_slow_storage_of_one_rank_is_named() -> None:
    found = headlines(*rank(0, 58, 2), *rank(1, 0, 60), *rank(2, 58, 2))
    text = "Training rank 1 needed 1 min 40 s (1 min 0 s to store checkpoints); the median of 3 ranks was 42.0 s"
    assert found == [("stragglers", f"{text}, and the other ranks waited")]


def test_ranks_of_two_runs_are_not_compared() -> None:
    assert not headlines(*rank(0, 80), *rank(1, 80), *rank(0, 0, run="b"), *rank(1, 0, run="b"))


def test_of_many_runs_with_a_slow_rank_the_worst_is_named() -> None:
    runs = [
        each for run in "abc" for number, waited in enumerate((70, 0, 70)) for each in rank(number, waited, run=run)
    ]
    worst = [each for number, waited in enumerate((5, 90, 90)) for each in rank(number, waited, run="d")]
    found = headlines(*runs, *worst)
    assert [code for code, _ in found] == ["stragglers"]
    assert found[0][1].startswith("Training rank 0 needed")
    assert found[0][1].endswith(", and the other ranks waited, as in 3 other runs")


def test_times_of_a_restarted_rank_are_added() -> None:
    first = [sampled("train_report_total_blocked_time_s", 0, float(number != 1) * 50, 0, 0, ray_train_run_id="a",
                     ray_train_worker_world_rank=str(number), ray_train_worker_actor_id=f"x{number}")
             for number in range(3)]  # fmt: skip
    found = headlines(*rank(0, 50, old=True), *rank(1, 0, old=True), *rank(2, 50, old=True), *first)
    assert [code for code, _ in found] == ["stragglers"]
