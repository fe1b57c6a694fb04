"""Texts that a job chooses: huge lines, broken tracebacks, repeated marks. A diagnosis stays small and ends."""

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.headlines import MAX_HEADLINE
from rayhistory.diagnosis.markdown import to_markdown
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, session_with_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.session_facts import SessionFacts

TEXTS = {
    "one line of megabytes": "x" * 3_000_000,
    "frames without an exception": '\n  File "a", line 1, in b' * 2_500,
    "exception without an end": "A." * 30_000 + "\n",
    "open environment variables": '"env_vars": {' * 1_300,
    "open values of variables": "'env_vars': {" + "'a':\"x " * 2_000 + "}",
    "forwarded lines without an end": "(raylet pid=1 " * 4_500,
    "errors of retried tasks": "(raylet) Task a failed. There are 1 retries remaining, so the task will be retried. "
    "Error: User exception:\n" * 600,
    "exceptions that a library wrapped": "ray::a() (pid=1)\nray.exceptions.UserCodeException: b\n\nThe above exception "
    "was the direct cause of the following exception:\n\n" * 500 + "ray::a() (pid=1)\n"
    "ray.exceptions.UserCodeException: b",
    "headers of tracebacks": "Traceback (most recent call last):\n" * 1_800,
    "escape sequences": "\x1b[31m\u202e\x00" * 20_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_diagnosis_of_any_text_is_small(text: str) -> None:
    for facts in (
        session_with_task(text),
        SessionFacts(jobs=[failed_job(text)]),
        death_facts(dead_example_worker(stderr=text, exit_detail=text[:20_000])),
    ):
        found = diagnose(facts)
        assert found.verdict and len(found.verdict.headline) <= MAX_HEADLINE
        assert found.verdict.headline.isprintable()
        assert len(msgspec.json.encode(found)) < 400_000
        assert to_markdown(found, "session")
