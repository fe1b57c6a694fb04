"""Objects that cannot be serialized."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, session_with_driver, words
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.diagnosis.tracebacks import RaisedException

_TYPES = ("TypeError", "PicklingError", "PickleError", "AttributeError", "ValueError", "NotImplementedError")
_NOT_SERIALIZABLE = r"cannot pickle [^\n]{1,80}|Could not serialize the [^\n]{1,120}|non-serializable"


def _applies(raised: RaisedException, text: str) -> bool:
    return re.search(_NOT_SERIALIZABLE, f"{raised} {text[-4_000:]}") is not None and raised.short_type in _TYPES


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_exception(failure, _applies, anywhere=_NOT_SERIALIZABLE)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return words(
        group,
        "uses an object that cannot be serialized",
        "Create the object inside the task. Locks, connections and open files cannot be sent to another process. "
        "ray.util.inspect_serializability(obj) finds the object that fails.",
    )


RULE = FailureRule(
    code="serialization_failed",
    meaning="An argument, a result or a captured variable cannot be pickled.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=session_with_driver(
            "TypeError: Could not serialize the argument <unlocked _thread.lock> for a task train.f"
        ),
        headline="The driver of job nightly uses an object that cannot be serialized: TypeError: Could not serialize "
        "the argument <unlocked _thread.lock> for a task train.f (train.py:9 in main)",
    ),
)
