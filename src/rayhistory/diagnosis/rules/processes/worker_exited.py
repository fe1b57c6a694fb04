"""Workers that exited by themselves."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    log_evidence,
    process_name,
)
from rayhistory.diagnosis.rules.processes.silent_death import silent_death
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_EXITED = re.compile(r"Worker exits with an exit code (-?\d+)|exit code (-?\d+)|SystemExit(?:\((-?\d+)\)|: (-?\d+))?")
_SIGNALLED = "receives a SIGTERM"


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or _SIGNALLED in worker.exit_detail:
        return None
    group = f"{failure.job_id} {function_of(failure, facts)}"
    if found := _EXITED.search(worker.exit_detail):
        code = next((text for text in found.groups() if text), "")
        return Match(
            group=f"{group} {code}",
            evidence=(exit_evidence(worker), log_evidence(worker, facts)),
            cause=f"exit code {code}" if code else "",
        )
    silent = silent_death(failure, facts)
    if silent is None or silent.by != "itself":
        return None
    return Match(group=group, confidence=silent.confidence, evidence=silent.evidence, cause=silent.cause)


def _describe(group: Group, facts: SessionFacts) -> Words:
    name, match = process_name(group, facts), group.match
    suggestion = "Raise an exception instead of exiting, so that the caller gets its message."
    if match.confidence == "certain":
        return Words(
            headline=one_line(f"{name} exited by itself{f' with {match.cause}' if match.cause else ''}"),
            detail="The task's code or a library called sys.exit() or os._exit().",
            suggestion=suggestion,
        )
    return Words(
        headline=one_line(f"{name} exited without a crash report, probably by os._exit(): {match.cause}"),
        detail="There is no stack trace and no exit message, and memory was not the cause. A kill -9 would leave "
        "the same traces, but is less likely in this case.",
        suggestion=f"Look for os._exit() in the task's code and its libraries. {suggestion}",
    )


RULE = FailureRule(
    code="worker_exited",
    meaning="A worker process called sys.exit() or os._exit(). Ray does not record os._exit(). The finding is "
    "certain if the raylet reports an exit code. It is likely if the worker died without a crash report, and either "
    "all attempts of its function ended this way, or the worker died right after the function was sent to it.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=death_facts(dead_example_worker(exit_type="USER_ERROR", exit_detail="Worker exits with an exit code 5.")),
        headline="Worker 4376 on 10.0.0.7 (task train) exited by itself with exit code 5",
    ),
)
