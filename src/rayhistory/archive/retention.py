"""Retention decisions: a pure function of a policy and a few values of each session.

Failed sessions are useful for longer and have a separate maximum age. A session without an index counts as failed,
because it may have failed.
"""

from collections.abc import Iterable

import msgspec

from rayhistory.sessions import SessionRef
from rayhistory.sessions.catalog import RUNNING
from rayhistory.sizes import format_size

DAY_S = 86_400.0


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Limits; None is no limit. Ages are in seconds."""

    max_age: float | None = None
    failed_max_age: float | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None
    max_bytes_text: str = ""
    """The limit as the user wrote it."""
    namespace: str | None = None


class RetentionCandidate(msgspec.Struct, frozen=True):
    """A session that a policy may apply to. Times are seconds since 1970."""

    ref: SessionRef
    state: str
    started: float
    ended: float
    """The end of the session, or the last heartbeat if it vanished."""
    size: int
    """Size of all objects of the session."""
    last_write: float
    failed: bool | None
    """True if the session failed; None if it is not indexed."""
    pinned: bool = False
    idle_after: float = 0.0
    """The session is kept for this many seconds after its last write, because a collector may still upload."""
    index_size: int = 0
    """The size of the latest index, as lists of sessions show it. It is part of `size`."""
    derived_size: int = 0
    """The size of everything else that can be rebuilt: products, and older indexes. It is part of `size`."""


class RetentionDecision(msgspec.Struct, frozen=True):
    candidate: RetentionCandidate
    remove: bool
    reason: str


def decide(candidates: Iterable[RetentionCandidate], policy: RetentionPolicy, now: float) -> list[RetentionDecision]:
    """Decide which sessions to remove: all that are too old, then others until the other limits are met.

    Of these others, successful sessions are removed before failed ones, and older sessions before newer ones.
    """
    candidates = list(candidates)
    decisions = {candidate.ref.identity: _decide_by_age(candidate, policy, now) for candidate in candidates}
    kept = [candidate for candidate in candidates if not decisions[candidate.ref.identity].remove]
    count, size = len(kept), sum(candidate.size for candidate in kept)
    for candidate in sorted(kept, key=lambda c: (c.failed is not False, c.started, c.ref)):
        reason = _exceeded_limit(policy, count, size)
        if reason is None:
            break
        if _reason_to_keep(candidate, now):
            continue
        decisions[candidate.ref.identity] = RetentionDecision(candidate, True, reason)
        count, size = count - 1, size - candidate.size
    return [decisions[candidate.ref.identity] for candidate in candidates]


def _decide_by_age(candidate: RetentionCandidate, policy: RetentionPolicy, now: float) -> RetentionDecision:
    if reason := _reason_to_keep(candidate, now):
        return RetentionDecision(candidate, False, reason)
    age = now - candidate.ended
    is_old = policy.max_age is not None and age > policy.max_age
    if candidate.failed is False:
        return RetentionDecision(candidate, is_old, f"ended {_format_age(age)} ago" if is_old else "")
    status = "failed" if candidate.failed else "not indexed, may have failed"
    if policy.failed_max_age is not None and age > policy.failed_max_age:
        return RetentionDecision(candidate, True, f"ended {_format_age(age)} ago ({status})")
    return RetentionDecision(candidate, False, f"{status}: --failed-max-age applies" if is_old else "")


def _reason_to_keep(candidate: RetentionCandidate, now: float) -> str:
    if candidate.state == RUNNING:
        return "running"
    if candidate.pinned:
        return "pinned"
    if now - candidate.last_write < candidate.idle_after:
        return (
            f"last written {_format_age(now - candidate.last_write)} ago, a collector may still upload "
            f"(kept for {_format_age(candidate.idle_after)} after the last write)"
        )
    return ""


def _exceeded_limit(policy: RetentionPolicy, count: int, size: int) -> str | None:
    if policy.max_sessions is not None and count > policy.max_sessions:
        return f"{count} sessions, --max-sessions is {policy.max_sessions}"
    if policy.max_bytes is not None and size > policy.max_bytes:
        return f"sessions take {format_size(size)}, --max-bytes is {policy.max_bytes_text or policy.max_bytes}"
    return None


def _format_age(seconds: float) -> str:
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:.0f} days"
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{max(seconds, 0):.0f} s"
