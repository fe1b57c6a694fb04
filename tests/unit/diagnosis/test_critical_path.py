"""The critical path, estimated from the times of tasks."""

from rayhistory.diagnosis.critical_path import estimate_critical_path
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts
from rayhistory.index.query.long_tasks import LongTask
from rayhistory.index.query.task_times import TimeTotals


def task(name: str, created: int, start: int, end: int, *, ready: int | None = None, **more: str) -> LongTask:
    return LongTask(task_id=f"{name}-{start}", job_id="01", function=name, created_ms=created, start_ms=start,
                    end_ms=end, ready_ms=created if ready is None else ready, **more)  # fmt: skip


def path(*tasks: LongTask) -> list[str]:
    found = estimate_critical_path(SessionFacts(long_tasks=list(tasks)))
    return [f"{step.function} {step.tasks}" for step in found.steps] if found else []


def test_task_follows_the_one_whose_result_it_waited_for() -> None:
    load, other = task("load", 0, 0, 1_000), task("other", 0, 0, 300)
    assert path(load, other, task("train", 0, 1_010, 5_000, ready=1_005)) == ["load 1", "train 1"]


def test_task_that_waited_for_a_slot_follows_the_one_before_it_on_its_node() -> None:
    first = task("work", 0, 0, 2_000, node_id="a")
    elsewhere = task("aside", 0, 0, 2_100, node_id="b")
    assert path(first, elsewhere, task("work", 0, 2_110, 4_000, node_id="a")) == ["work 2"]


def test_loop_of_a_driver_is_one_step() -> None:
    assert path(*(task("step", n * 100, n * 100, n * 100 + 95) for n in range(30))) == ["step 30"]


def test_task_that_only_waited_for_its_own_tasks_is_left_out() -> None:
    outer = LongTask(task_id="outer", job_id="01", function="outer", created_ms=0, ready_ms=0, start_ms=0, end_ms=5_000)
    inner = [task("inner", at, at, at + 2_000, parent_task_id="outer") for at in (0, 2_010)]
    assert path(outer, *inner) == ["inner 2"]


def test_path_says_what_more_cpus_can_and_cannot_do() -> None:
    tasks = [task("a", 0, 0, 3_000), task("b", 0, 3_005, 9_000, ready=3_001)]
    nodes = [NodeFacts(node_id="n", resources={"CPU": 4.0})]
    found = estimate_critical_path(SessionFacts(long_tasks=tasks, nodes=nodes, times=TimeTotals(running_ms=20_000)))
    assert found and found.approximate
    assert (found.span_ms, found.run_ms, found.ideal_ms, found.tasks) == (9_000, 8_995, 5_000, 2)


def test_single_task_has_no_path() -> None:
    assert path(task("alone", 0, 0, 10)) == []
