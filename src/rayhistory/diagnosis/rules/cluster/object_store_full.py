"""Objects that did not fit into the object store."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.cluster.reported import describe_reported, match_reported, reported_example
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_ERRORS = ("OBJECT_STORE_FULL",)
_TEXT = re.compile(
    r"(?:ray\.exceptions\.)?ObjectStoreFullError[^\n]{0,200}|"
    r"object store is full[^\n]{0,200}"
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_reported(failure, _ERRORS, _TEXT)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_reported(
        group,
        "failed because the object store was full",
        "Give the object store more memory (--object-store-memory), hold fewer object references at a time, or "
        "return smaller objects.",
    )


RULE = FailureRule(
    code="object_store_full",
    meaning="The object store of a node was full, and objects could not be spilled.",
    match=_match,
    describe=_describe,
    example=reported_example(
        "OBJECT_STORE_FULL",
        "ObjectStoreFullError: Failed to put object",
        "Task train failed because the object store was full: ObjectStoreFullError: Failed to put object",
    ),
)
