"""Objects that were lost and could not be reconstructed."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.cluster.reported import describe_reported, match_reported, reported_example
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_ERRORS = (
    "OBJECT_LOST", "OBJECT_FREED", "OBJECT_DELETED", "OWNER_DIED", "OBJECT_FETCH_TIMED_OUT", "OBJECT_UNRECONSTRUCTABLE",
    "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED", "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
)  # fmt: skip
_TEXT = re.compile(
    r"ray\.exceptions\.(?:ObjectLostError|ObjectFreedError|OwnerDiedError|ObjectFetchTimedOutError)[^\n]{0,200}|"
    r"ray\.exceptions\.(?:ObjectReconstructionFailed\w*|ReferenceCountingAssertionError)[^\n]{0,200}"
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_reported(failure, _ERRORS, _TEXT)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_reported(
        group,
        "needs an object that was lost",
        "Keep a reference to the object while it is in use. Allow retries of the task that created it (max_retries), "
        "so that Ray can reconstruct it.",
    )


RULE = FailureRule(
    code="object_lost",
    meaning="An object was lost or freed, and Ray could not reconstruct it.",
    match=_match,
    describe=_describe,
    example=reported_example(
        "OBJECT_FREED",
        "Failed to retrieve object 00ab",
        "Task train needs an object that was lost: Failed to retrieve object 00ab",
    ),
)
