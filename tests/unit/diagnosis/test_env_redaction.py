"""Values of environment variables never reach a diagnosis."""

import asyncio
import copy
from pathlib import Path

import msgspec
import pytest

from rayhistory.diagnosis import gather
from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.env_redaction import env_values
from rayhistory.diagnosis.rules.exceptions.raised import session_with_task
from support.folding import RECORDED, as_lines, fold_session, opened, put

SECRET = "hunter2-hunter2"


def everything(message: str, values: list[str]) -> str:
    facts = msgspec.structs.replace(session_with_task(message), env_values=values)
    return msgspec.json.encode(diagnose(facts)).decode()


def test_value_of_a_variable_is_removed_wherever_it_is_printed() -> None:
    message = f'User exception:\n  File "/app/a.py", line 3, in run\n    x\nValueError: no access with {SECRET}!'
    assert SECRET in everything(message, [])
    text = everything(message, env_values([f'{{"env_vars": {{"TOKEN": "{SECRET}", "DEBUG": "1"}}}}', None, "[["]))
    assert SECRET not in text
    assert "no access with <redacted>!" in text


@pytest.mark.parametrize(
    "form", ['{"env_vars": {"TOKEN": "%s"}}', "{'env_vars': {'A': 'x y', 'TOKEN': '%s'}, 'pip': []}"]
)
def test_printed_runtime_environment_is_masked(form: str) -> None:
    message = f'User exception:\n  File "/app/a.py", line 3, in run\nRuntimeError: cannot set up {form % SECRET}'
    text = everything(message, [])
    assert SECRET not in text
    assert "TOKEN" in text


def test_short_values_are_ordinary_words() -> None:
    assert env_values(['{"env_vars": {"A": "1", "B": "true", "C": "long-enough"}}']) == ["long-enough"]


def test_value_that_is_a_word_is_removed_only_as_a_whole_word() -> None:
    message = (
        'User exception:\n  File "/app/sample_job.py", line 3, in run\n    x\nValueError: sample of samples in sample'
    )
    text = everything(message, ["sample"])
    assert "sample_job.py" in text
    assert "<redacted> of samples in <redacted>" in text


@pytest.mark.slow
def test_values_of_failed_tasks_are_known(tmp_path: Path) -> None:
    """A driver may set variables for one task, or by ray.init without a submission."""
    environment = msgspec.json.encode({"env_vars": {"TOKEN": SECRET}}).decode()
    events = copy.deepcopy(RECORDED)
    for event in events:
        if definition := event.get("taskDefinitionEvent"):
            definition["serializedRuntimeEnv"] = environment
    put(tmp_path, 0, as_lines(events))
    index = opened(tmp_path, fold_session(tmp_path))
    assert SECRET in asyncio.run(gather._env_values(index))
