"""Values of environment variables never reach a diagnosis."""

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.env_redaction import env_values
from rayhistory.diagnosis.rules.exceptions.raised import session_with_task

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
