"""Nodes whose disk was full."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.rules.cluster.reported import describe_reported, match_reported, reported_example
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts

_ERRORS = ("OUT_OF_DISK_ERROR",)
_TEXT = re.compile(
    r"(?:ray\.exceptions\.)?OutOfDiskError[^\n]{0,200}|"
    r"Local disk is full[^\n]{0,200}|"
    r"No space left on device[^\n]{0,100}|"
    r"likely out of disk space"
)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    return match_reported(failure, _ERRORS, _TEXT)


def _describe(group: Group, facts: SessionFacts) -> Words:
    return describe_reported(
        group,
        "failed because a disk was full",
        (
            "Free or enlarge the disk of Ray's temporary directory, or spill to another disk "
            "(--object-spilling-directory)."
        ),
    )


RULE = FailureRule(
    code="out_of_disk",
    meaning="A disk was full, so objects could not be spilled or files could not be written.",
    match=_match,
    describe=_describe,
    example=reported_example(
        "OUT_OF_DISK_ERROR",
        "OutOfDiskError: Local disk is full",
        "Task train failed because a disk was full: OutOfDiskError: Local disk is full",
    ),
)
