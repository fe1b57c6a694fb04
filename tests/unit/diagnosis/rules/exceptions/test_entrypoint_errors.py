"""Drivers that fail without an exception: the diagnosis names the file, the command or the argument."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, session_with_task
from rayhistory.diagnosis.session_facts import SessionFacts

RAYS_LINES = (
    "2026-11-15 19:19:08,334\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
    "Running entrypoint for job nightly: python train.py\n"
)
NO_FILE = "[Errno 2] No such file or directory"


def diagnosis_of(output: str, exit_code: int | None) -> Diagnosis:
    return diagnose(SessionFacts(jobs=[failed_job(output, exit_code=exit_code)]))


@pytest.mark.parametrize(
    ("exit_code", "line", "headline"),
    [
        (2, f"python: can't open file '/app/train.py': {NO_FILE}", "failed: the file /app/train.py does not exist"),
        (2, f"/usr/bin/python3: can't open file 'a: b.py': {NO_FILE}", "failed: the file a: b.py does not exist"),
        (2, "python: can't open file '/app/x.py': [Errno 13] Permission denied",
         "failed: cannot open the file /app/x.py: Permission denied"),
        (1, "/usr/bin/python: can't find '__main__' module in '/app'", "failed: /app is not a Python program"),
        (2, "train.py: error: unrecognized arguments: --epoch",
         "failed: wrong arguments: unrecognized arguments: --epoch"),
        (2, "Error: No such option: --epoch", "failed: wrong arguments: No such option: --epoch"),
        (127, "/bin/sh: 1: pyhton: not found", "failed: the command pyhton was not found"),
        (127, "run.sh: line 30: pyhton: command not found", "failed: the command pyhton was not found"),
        (127, "/bin/bash: line 1: ./run.sh: No such file or directory", "failed: the file ./run.sh does not exist"),
        (126, "/bin/sh: 1: ./run.sh: Permission denied", "failed: the file ./run.sh is not executable"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["log", "message"])
def test_last_line_of_an_entrypoint_is_the_cause(exit_code: int, line: str, headline: str, form: str) -> None:
    begin = RAYS_LINES if form == "log" else f"Job entrypoint command failed with exit code {exit_code}, last logs:\n"
    (finding,) = diagnosis_of(f"{begin}{line}\n", exit_code).findings
    assert (finding.code, finding.confidence) == ("driver_exception", "certain")
    assert finding.headline == f"The driver of job nightly {headline}"
    assert finding.detail == f"It exited with code {exit_code}."


@pytest.mark.parametrize(
    ("output", "detail"),
    [
        (f"{RAYS_LINES}loading\nno data\n\n", "Its last output line: no data"),
        (f"{RAYS_LINES}python: can't open file 'x.py': {NO_FILE}\nbye\n", "Its last output line: bye"),
        (RAYS_LINES, "It printed nothing."),
    ],
)
def test_other_exit_shows_the_last_output_line(output: str, detail: str) -> None:
    (finding,) = diagnosis_of(output, 2).findings
    assert finding.headline == "The driver of job nightly exited with code 2, without an exception"
    assert finding.detail == detail


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/python3.11: No module named train",
        "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')",
    ],
)
def test_module_of_python_m_is_named(line: str) -> None:
    (finding,) = diagnosis_of(f"{RAYS_LINES}{line}\n", 1).findings
    assert finding.code == "module_not_found"
    assert finding.headline == f"The driver of job nightly needs a module that is not installed: {line}"
    assert diagnosis_of(f"{RAYS_LINES}{line}\nbye\n", 1).findings[0].code == "driver_exception"


def test_long_hostile_line_takes_no_long_time() -> None:
    for line in ("python" * 10_000, ": can't open file '" * 3_000, "x: 1: " * 9_000):
        (finding,) = diagnosis_of(line, 2).findings
        assert finding.code == "driver_exception"


def test_things_that_failed_because_of_an_exception_are_counted_by_kind() -> None:
    facts = session_with_task(
        'User exception:\n  File "/app/train.py", line 4, in train\n    import lightgbm\n'
        "ModuleNotFoundError: No module named 'lightgbm'"
    )
    (finding,) = diagnose(facts).findings
    assert (finding.counts.tasks, finding.counts.jobs, finding.consequences) == (1, 1, 1)
    assert finding.detail == "Failed because of it: 1 job."
