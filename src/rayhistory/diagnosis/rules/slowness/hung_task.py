"""Tasks that were still running at the end, much longer than other tasks of their function."""

from rayhistory.diagnosis.findings import Evidence, Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import example_function, slow
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.index.query.task_times import FunctionTimes, OpenTask

_MIN_TASKS = 10
_MIN_RUN_MS = 5_000
_DEVIATIONS = 10
_MIN_SPREAD = 0.1
"""Minimum deviation of run times that is assumed, as a share of their mean. Ten equal run times may be chance."""


def _find(facts: SessionFacts) -> list[Finding]:
    usual = {(each.job_id, each.function): each for each in facts.functions}
    found = []
    for task in facts.open_tasks:
        times = usual.get((task.job_id, task.function))
        end = task.end_ms or facts.ended_ms
        if times and end and _is_hung(end - task.start_ms, times):
            found.append(_finding(task, end - task.start_ms, times))
    return found


def _is_hung(run_ms: int, times: FunctionTimes) -> bool:
    spread = max(times.deviation_ms, _MIN_SPREAD * times.mean_ms)
    return times.count >= _MIN_TASKS and run_ms >= max(_MIN_RUN_MS, times.mean_ms + _DEVIATIONS * spread)


def _finding(task: OpenTask, run_ms: int, times: FunctionTimes) -> Finding:
    return slow(
        "hung_task",
        f"Task {task.function} was still running after {duration(run_ms)}; {times.count} others took "
        f"{duration(times.mean_ms)} on average",
        suggestion="While it runs, look at its stack trace (`ray stack`, py-spy) and its last output lines.",
        tasks=1, first_ms=task.start_ms, last_ms=task.end_ms,
        evidence=[Evidence(kind="task", id=task.task_id, text=f"running for {duration(run_ms)}", at_ms=task.start_ms)],
    )  # fmt: skip


RULE = SessionRule(
    code="hung_task",
    meaning=(
        "A task was still running at the end of the session. It had run longer than the average of other tasks of its "
        "function, by at least ten standard deviations."
    ),
    find=_find,
    example=Example(
        facts=SessionFacts(
            functions=[example_function()], ended_ms=1_800_000_100_000,
            open_tasks=[OpenTask(job_id="01000000", function="train", task_id="ab" * 24, start_ms=1_800_000_010_000)],
        ),
        headline="Task train was still running after 1 min 30 s; 20 others took 1.0 s on average",
    ),
)  # fmt: skip
