"""Modules that are not installed where the code ran."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_task, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException

_PYTHON_M = r"(?m)^\S{0,300}python[\w.]{0,20}: (?:Error while finding module|No module named) .*(?=\s*\Z)"
"""The last line of `python -m MODULE`, which has no traceback."""
_NAME = re.compile(r"No module named '?([\w]{1,100})")


def _applies(raised: RaisedException, text: str) -> bool:
    return raised.short_type in ("ModuleNotFoundError", "ImportError") and "No module named" in raised.message


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_exception(failure, _applies, anywhere=_PYTHON_M)


def _describe(group: Group, facts: SessionFacts) -> Words:
    found = _NAME.search(group.match.cause)
    package = f"the package with the module {found[1]}" if found else "the package"
    return words(
        group,
        "needs a module that is not installed",
        f"Install {package} where the job runs, or add the package to the runtime environment: "
        'runtime_env={"pip": ["…"]}.',
        several="need a module that is not installed",
    )


RULE = FailureRule(
    code="module_not_found",
    meaning="The code imports a Python module that is not installed on its node.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_task(
            'User exception:\n  File "/app/train.py", line 4, in train\n    import lightgbm\n'
            "ModuleNotFoundError: No module named 'lightgbm'"
        ),
        headline="Task train needs a module that is not installed: ModuleNotFoundError: No module named 'lightgbm' "
        "(train.py:4 in train)",
    ),
)
