"""Decide which session is indexed next, without a clock and a store.

The order is: sessions that visitors opened, sessions that run or have just ended, then old sessions. Within each of
these, namespaces take turns, and the session that has waited longest comes first. Old sessions get every eighth turn,
so that they are indexed even if running sessions keep all slots busy.
"""

from collections.abc import Hashable, Iterable

import msgspec

Identity = tuple[str, str, str]
"""Namespace, cluster and session name."""

_TURNS_PER_OLD_SESSION = 8


class Candidate(msgspec.Struct, frozen=True):
    """A session, as input of the schedule."""

    identity: Identity
    mark: Hashable
    """A value that changes when the session ends, vanishes or resumes. Then the session is due at once."""
    old: bool
    """True if the session ended a while ago."""


class _ScheduledSession(msgspec.Struct):
    candidate: Candidate
    due_at: float
    busy: bool = False


class IndexSchedule:
    def __init__(self) -> None:
        self._plans: dict[Identity, _ScheduledSession] = {}
        self._last_turns: dict[str, int] = {}
        """The last turn of each namespace."""
        self._turn = 0

    def update(self, candidates: Iterable[Candidate], now: float) -> None:
        """Replace the known sessions. New and changed sessions are due now."""
        plans = {}
        for candidate in candidates:
            plan = self._plans.get(candidate.identity) or _ScheduledSession(candidate, now)
            if plan.candidate.mark != candidate.mark:
                plan.due_at = min(plan.due_at, now)
            plan.candidate = candidate
            plans[candidate.identity] = plan
        busy = {identity: plan for identity, plan in self._plans.items() if plan.busy}
        self._plans = busy | plans
        namespaces = {namespace for namespace, _, _ in self._plans}
        self._last_turns = {name: turn for name, turn in self._last_turns.items() if name in namespaces}

    def next(self, now: float, visited: Iterable[Identity] = ()) -> Identity | None:
        """Return the session to index now, and mark it as busy; None if none is due."""
        due = [plan for plan in self._plans.values() if not plan.busy and plan.due_at <= now]
        if not due:
            return None
        self._turn += 1
        looked_at = set(visited)
        old_first = self._turn % _TURNS_PER_OLD_SESSION == 0

        def order(plan: _ScheduledSession) -> tuple[bool, bool, int, float]:
            identity, old = plan.candidate.identity, plan.candidate.old
            urgency = identity not in looked_at and not (old_first and old)
            return urgency, old and not old_first, self._last_turns.get(identity[0], 0), plan.due_at

        chosen = min(due, key=order)
        chosen.busy = True
        self._last_turns[chosen.candidate.identity[0]] = self._turn
        return chosen.candidate.identity

    def done(self, identity: Identity, due_at: float) -> None:
        """Record that a session was indexed, and when it is due again."""
        if plan := self._plans.get(identity):
            plan.busy, plan.due_at = False, due_at

    def next_due_at(self) -> float | None:
        """Return the time when the next session is due; None if there is none."""
        return min((plan.due_at for plan in self._plans.values() if not plan.busy), default=None)
