"""Which sessions have to go: a pure decision on a few facts of each.

A session that failed is of use for longer. Where nobody has indexed a session, it may have failed, and is kept as long.
"""

from collections.abc import Iterable

import msgspec

from rayhistory.layout import SessionRef
from rayhistory.server.catalogue import RUNNING

DAY = 86_400.0


class Rules(msgspec.Struct, frozen=True):
    """Ages in seconds. What is None does not limit."""

    max_age: float | None = None
    failed_max_age: float | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None
    namespace: str | None = None

    def age_of(self, *, failed: bool) -> float | None:
        return self.failed_max_age if failed else self.max_age


class Facts(msgspec.Struct, frozen=True):
    """What is known of a session."""

    ref: SessionRef
    state: str
    started: float
    last: float
    """Seconds since the epoch: its end, or its last sign of life."""
    size: int
    written: float
    """When something was last added to it."""
    failed: bool | None
    """None when nobody has looked."""
    pinned: bool = False
    quiet_after: float = 0.0
    """It may be running if something was added within this time."""


class Verdict(msgspec.Struct, frozen=True):
    facts: Facts
    goes: bool
    why: str


def decide(sessions: Iterable[Facts], rules: Rules, now: float) -> list[Verdict]:
    """First those whose time is over; of the rest the oldest, failed ones last, until the limits hold."""
    sessions = list(sessions)
    verdicts = {facts.ref.identity: _by_age(facts, rules, now) for facts in sessions}
    left = [facts for facts in sessions if not verdicts[facts.ref.identity].goes]
    count, size = len(left), sum(facts.size for facts in left)
    for facts in sorted(left, key=lambda facts: (facts.failed is not False, facts.started, facts.ref)):
        why = _over(rules, count, size)
        if why is None:
            break
        if _stays(facts, now):
            continue
        verdicts[facts.ref.identity] = Verdict(facts, True, why)
        count, size = count - 1, size - facts.size
    return [verdicts[facts.ref.identity] for facts in sessions]


def _by_age(facts: Facts, rules: Rules, now: float) -> Verdict:
    if why := _stays(facts, now):
        return Verdict(facts, False, why)
    age = now - facts.last
    usual, longer = rules.age_of(failed=False), rules.age_of(failed=True)
    if facts.failed is False:
        goes = usual is not None and age > usual
        return Verdict(facts, goes, f"ended {_days(age)} ago" if goes else "")
    word = "it failed" if facts.failed else "it is not indexed and may have failed"
    if longer is not None and age > longer:
        return Verdict(facts, True, f"ended {_days(age)} ago, though {word}")
    return Verdict(facts, False, f"kept longer: {word}" if usual is not None and age > usual else "")


def _stays(facts: Facts, now: float) -> str:
    if facts.state == RUNNING:
        return "it runs"
    if facts.pinned:
        return "it is pinned"
    if now - facts.written < facts.quiet_after:
        return "something was added to it lately: it may be running"
    return ""


def _over(rules: Rules, count: int, size: int) -> str | None:
    if rules.max_sessions is not None and count > rules.max_sessions:
        return f"one of {count} sessions, {rules.max_sessions} are to be kept"
    if rules.max_bytes is not None and size > rules.max_bytes:
        return f"sessions take {shown_size(size)}, {shown_size(rules.max_bytes)} are to be kept"
    return None


def _days(seconds: float) -> str:
    return f"{seconds / DAY:.0f} days" if seconds >= 2 * DAY else f"{seconds / 3600:.1f} hours"


def shown_size(size: float) -> str:
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):  # noqa: B007 - the last is for all the rest
        size /= 1000
        if size < 1000:
            break
    return f"{size:.1f} {unit}"
