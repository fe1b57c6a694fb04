"""Workers that ended themselves."""

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
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_EXITED = re.compile(r"Worker exits with an exit code (-?\d+)|exit code (-?\d+)|SystemExit(?:\((-?\d+)\)|: (-?\d+))?")


_SIGNALLED = "receives a SIGTERM"


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None:
        return None
    found = _EXITED.search(worker.exit_detail)
    if found is None or _SIGNALLED in worker.exit_detail:
        return None
    code = next((group for group in found.groups() if group), "")
    return Match(
        group=f"{failure.job_id} {function_of(failure, facts)} {code}",
        evidence=(exit_evidence(worker), log_evidence(worker, facts)),
        cause=f" with exit code {code}" if code else "",
    )


def _describe(group: Group, facts: SessionFacts) -> Words:
    return Words(
        headline=one_line(f"{process_name(group, facts)} ended itself{group.match.cause}"),
        detail="Code in the worker called sys.exit() or os._exit(), or a library did.",
        suggestion="Raise an exception instead, so that its message reaches the caller.",
    )


RULE = FailureRule(
    code="worker_exited",
    meaning="A worker process ended itself, by sys.exit() or os._exit().",
    match=_match,
    describe=_describe,
    example=Example(
        facts=death_facts(dead_example_worker(exit_type="USER_ERROR", exit_detail="Worker exits with an exit code 5.")),
        headline="Worker 4376 on 10.0.0.7 (task train) ended itself with exit code 5",
    ),
)
