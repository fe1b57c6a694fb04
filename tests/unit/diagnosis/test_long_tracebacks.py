"""The evidence of a diagnosis keeps the beginning, the user's frames and the end of a long traceback."""

import msgspec
import pytest

from rayhistory.cli.inspect.diagnose import describe, verdict_paragraph
from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.earlier_runs import EarlierRuns, skipped_comparisons
from rayhistory.diagnosis.findings import Diagnosis, Evidence, SkippedRule
from rayhistory.diagnosis.markdown import to_markdown
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.session_facts import SessionFacts, WorkerFacts
from rayhistory.index.query.failure_groups import FailureGroups

HEADER = "Traceback (most recent call last):"
OWN = ['  File "/app/train.py", line 40, in <module>', '  File "/app/train.py", line 9, in fit']
LIBRARY = [
    f'  File "/opt/venv/lib/python3.11/site-packages/torch/nn/module.py", line {number}, in call\n    return forward()'
    for number in range(200)
]
END = "RuntimeError: shapes do not match"
TRACEBACK = "\n".join((HEADER, OWN[0], "    fit()", OWN[1], "    model(batch)", *LIBRARY, END, ""))
KEPT = (HEADER, *OWN, END)


def driver() -> SessionFacts:
    return SessionFacts(jobs=[failed_job("some output\n" + TRACEBACK)])


def task() -> SessionFacts:
    message = TRACEBACK.replace(HEADER, "User exception:\nray::fit() (pid=1, ip=10.0.0.7)")
    groups = FailureGroups([failed_task(message)], 1, 1)
    return SessionFacts(jobs=[failed_job("exited with code 1")], failures=groups)


def worker() -> SessionFacts:
    exited = WorkerFacts(
        worker_id="ab" * 14, node_id="cd" * 14, job_id="01000000", pid=7, exit_type="USER_ERROR",
        exit_detail="Worker exits with an exit code 1.", end_ms=1_800_000_001_000, stderr="loading\n" + TRACEBACK,
    )  # fmt: skip
    groups = FailureGroups([failed_task("", error_type="WORKER_DIED", worker_id="ab" * 14)], 1, 1)
    return SessionFacts(jobs=[failed_job("exited with code 1")], failures=groups, workers=[exited])


@pytest.mark.parametrize("facts", [driver(), task(), worker()], ids=["driver", "task", "worker"])
def test_evidence_of_a_long_traceback_has_its_beginning_and_user_frames(facts: SessionFacts) -> None:
    found = diagnose(facts)
    text = next(each.text for finding in found.findings for each in finding.evidence if END in each.text)
    beginning = "User exception:" if text.startswith("User") else HEADER
    assert len(text) <= 8_000
    for shown in (text, to_markdown(found, "title")):
        assert [line for line in (beginning, *OWN, END) if line not in shown] == []


@pytest.mark.parametrize("facts", [driver(), task()], ids=["driver", "task"])
def test_command_prints_the_beginning_the_user_frames_and_the_end(facts: SessionFacts) -> None:
    printed = "\n".join(describe(diagnose(facts)))
    assert [line for line in (*OWN, END) if line not in printed] == []
    assert len(printed.splitlines()) < 40


def test_command_prints_tracebacks_and_log_lines_of_handled_failures_and_of_failed_runs() -> None:
    """Suggestions refer to them."""
    finding = next(each for each in diagnose(task()).findings if each.code == "user_exception")
    handled = msgspec.structs.replace(finding, severity="info")
    log = Evidence(kind="log", id="ab" * 14, text="loading\nout of device memory, giving up\n")
    figure = Evidence(kind="metric", text="node memory 3.6 GiB of 23.5 GiB")
    died = msgspec.structs.replace(handled, evidence=[figure, log])
    printed = "\n".join(describe(Diagnosis(findings=[handled, died])))
    assert END in printed
    assert "out of device memory, giving up" in printed
    assert "node memory" not in printed
    assert END in verdict_paragraph(diagnose(driver()))


def test_command_does_not_report_missing_earlier_runs_as_rules_that_failed() -> None:
    first = diagnose(task())
    skipped = [*skipped_comparisons(EarlierRuns()), SkippedRule("head_lost", "no node is known")]
    lines = list(describe(msgspec.structs.replace(first, skipped=skipped)))
    assert "Not compared: there is no earlier run of the same job." in lines
    assert "1 rule could not run: no node is known." in lines
