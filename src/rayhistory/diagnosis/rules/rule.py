"""The definition of a rule: code, meaning, required data, match function, and an example that is also its test."""

from collections.abc import Callable
from typing import Literal

import msgspec

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Confidence, Counts, Evidence, Finding, Severity
from rayhistory.diagnosis.session_facts import SessionFacts

Need = Literal["logs", "metrics"]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rule that explains a failure. Failures with the same `group` become one finding."""

    group: str = ""
    confidence: Confidence = "certain"
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    """The cause in a few words, for the headline."""
    suggestion: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All failures that one rule explains in the same way, in order of time."""

    roots: list[Failure]
    matches: list[Match]
    consequences: list[Failure]
    counts: Counts

    @property
    def first(self) -> Failure:
        return self.roots[0]

    @property
    def match(self) -> Match:
        return self.matches[0]


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of a finding: headline, detail and suggestion."""

    headline: str
    detail: str = ""
    suggestion: str = ""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A session to which a rule applies, and the resulting headline."""

    facts: SessionFacts
    headline: str


class FailureRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that explains root failures."""

    code: str
    meaning: str
    match: Callable[[Failure, SessionFacts], Match | None]
    describe: Callable[[Group, SessionFacts], Words]
    example: Example
    severity: Severity = "critical"
    needs: tuple[Need, ...] = ()


class SessionRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule about the whole session: slowness, or gaps in the recording."""

    code: str
    meaning: str
    find: Callable[[SessionFacts], list[Finding]]
    example: Example
    severity: Severity = "warning"
    needs: tuple[Need, ...] = ()
