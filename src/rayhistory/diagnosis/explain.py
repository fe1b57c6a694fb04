"""Apply the failure rules. Each root cause becomes a finding, which counts its consequences."""

from collections.abc import Iterable, Iterator

import msgspec

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Confidence, Counts, Evidence, Finding, Severity
from rayhistory.diagnosis.fingerprints import fingerprint
from rayhistory.diagnosis.headlines import one_line, plural, things
from rayhistory.diagnosis.roots import Chain, find_chains
from rayhistory.diagnosis.rules.processes.deaths import function_of
from rayhistory.diagnosis.rules.registry import FAILURE_RULES
from rayhistory.diagnosis.rules.rule import FailureRule, Group, Match
from rayhistory.diagnosis.session_facts import SessionFacts

MAX_FINDINGS = 100
_MAX_EVIDENCE = 6
_MAX_EVIDENCE_CHARS = 8_000
_MAX_SUBJECTS = 300
_MAX_SUBJECT_CHARS = 300
_WAITING_IS_NORMAL = ("waiting",)


class Explained(msgspec.Struct, frozen=True):
    """A finding, and the failures that belong to it."""

    finding: Finding
    members: list[Failure]
    by_time: bool = False
    """True if it is the cause of its failed jobs only because it happened just before them."""


def explain_failures(facts: SessionFacts) -> list[Explained]:
    """Return one finding per cause. The largest unexplained failures are included."""
    grouped: dict[tuple[str, str], list[tuple[Chain, Match, FailureRule]]] = {}
    for chain in sorted(find_chains(facts), key=lambda chain: chain.root.at_ms or 0):
        for part, rule, match in _matches(chain, facts):
            grouped.setdefault((rule.code, match.group), []).append((part, match, rule))
    return _capped([_explained(members, facts) for members in grouped.values()], facts)


def _matches(chain: Chain, facts: SessionFacts) -> Iterator[tuple[Chain, FailureRule, Match]]:
    """Yield the rule that explains a chain of failures.

    If no rule explains its root, each consequence is matched separately.
    """
    if matched := _first_match(chain.root, facts):
        yield chain, *matched
        return
    for failure in chain.consequences:
        yield from _matches(Chain(failure, []), facts)


def _first_match(failure: Failure, facts: SessionFacts) -> tuple[FailureRule, Match] | None:
    for rule in FAILURE_RULES:
        if failure.kind in _WAITING_IS_NORMAL and rule.code == "unexplained":
            return None  # tasks may wait: only a rule can say that they waited in vain
        if match := rule.match(failure, facts):
            return rule, match
    return None


def _explained(members: list[tuple[Chain, Match, FailureRule]], facts: SessionFacts) -> Explained:
    rule = members[0][2]
    roots = [chain.root for chain, _, _ in members]
    consequences = [failure for chain, _, _ in members for failure in chain.consequences]
    failures = [*roots, *consequences]
    counts = sum((failure.counts for failure in failures), Counts())
    group = Group(roots=roots, matches=[match for _, match, _ in members], consequences=consequences, counts=counts)
    words = rule.describe(group, facts)
    first_ms, last_ms = _span(roots)
    handled = _is_handled(failures, facts)
    finding = Finding(
        code=rule.code,
        severity=_severity(rule, handled=handled),
        headline=words.headline,
        detail=words.detail,
        confidence=_confidence(group),
        root=not handled,
        first_ms=first_ms,
        last_ms=last_ms,
        counts=counts,
        evidence=list(_evidence(group)),
        suggestion=group.match.suggestion or words.suggestion,
        fingerprint=_fingerprint(rule.code, roots[0], facts),
        consequences=sum(failure.count for failure in consequences),
        subjects=_subjects(failures),
    )
    jobs = [failure.key for failure in failures if failure.kind == "job"]
    return Explained(finding, failures, by_time=bool(jobs) and members[0][0].by_time.issuperset(jobs))


def _fingerprint(code: str, root: Failure, facts: SessionFacts) -> str:
    """Return the fingerprint of an exception. Other failures are identified by their code and what failed."""
    if root.kind in ("tasks", "job", "actor") and root.exception:
        return root.fingerprint
    return fingerprint("", f"{code} {function_of(root, facts)}")


def _subjects(failures: list[Failure]) -> list[str]:
    ids = dict.fromkeys(each for failure in failures for each in _names(failure) if each)
    return [each[:_MAX_SUBJECT_CHARS] for each in list(ids)[:_MAX_SUBJECTS]]


def _names(failure: Failure) -> tuple[str, ...]:
    if failure.kind == "tasks" and failure.tasks:
        return failure.tasks.task_id, f"{failure.job_id} {failure.error_type} {failure.function}"
    if failure.kind == "waiting" and failure.waiting:
        return (failure.waiting.task_id,)
    return (failure.id, failure.job_id) if failure.kind == "job" else (failure.id,)


def _severity(rule: FailureRule, *, handled: bool) -> Severity:
    return "info" if handled else rule.severity


def _confidence(group: Group) -> Confidence:
    found = {match.confidence for match in group.matches}
    return "certain" if "certain" in found else "likely" if "likely" in found else "unexplained"


def _is_handled(failures: list[Failure], facts: SessionFacts) -> bool:
    """Return True if the program handled this failure: no job failed because of it."""
    if any(failure.kind == "job" for failure in failures):
        return False
    if any(failure.kind == "session" for failure in failures):
        return bool(facts.jobs) and not any(job.inferred for job in facts.jobs)
    jobs = {failure.job_id for failure in failures if failure.job_id}
    statuses = [job.status for id_ in jobs if (job := facts.job(id_))]
    return bool(statuses) and all(status == "SUCCEEDED" for status in statuses)


def _span(failures: list[Failure]) -> tuple[int | None, int | None]:
    times = [at for failure in failures for at in (failure.at_ms, failure.last_ms) if at is not None]
    return (min(times), max(times)) if times else (None, None)


def _evidence(group: Group) -> Iterable[Evidence]:
    seen: set[tuple[str, str, str]] = set()
    for match in group.matches:
        for each in match.evidence:
            key = (each.kind, each.id, each.text[:200])
            if key not in seen and len(seen) < _MAX_EVIDENCE:
                seen.add(key)
                yield msgspec.structs.replace(each, text=each.text[-_MAX_EVIDENCE_CHARS:])


def _capped(explained: list[Explained], facts: SessionFacts) -> list[Explained]:
    """Keep the largest findings, and combine all other findings into one that counts them."""
    unlisted = facts.failures.unlisted
    if len(explained) <= MAX_FINDINGS and not unlisted:
        return explained
    ranked = sorted(explained, key=lambda each: (any(f.kind == "job" for f in each.members), each.finding.counts.total),
                    reverse=True)  # fmt: skip
    kept, rest = ranked[:MAX_FINDINGS], ranked[MAX_FINDINGS:]
    return [*kept, _rest(rest, unlisted, facts)]


def _rest(rest: list[Explained], unlisted: int, facts: SessionFacts) -> Explained:
    counts = sum((each.finding.counts for each in rest), Counts(tasks=unlisted))
    causes = len(rest) + max(0, facts.failures.total_groups - len(facts.failures.groups))
    times = [at for each in rest for at in (each.finding.first_ms, each.finding.last_ms) if at is not None]
    headline = (
        f"{things(counts)} failed from {plural(causes, 'other cause')} that {'is' if causes == 1 else 'are'} not listed"
    )
    handled = bool(facts.jobs) and all(job.status == "SUCCEEDED" for job in facts.jobs)
    finding = Finding(
        code="user_exception", severity="info" if handled else "warning", root=not handled, confidence="likely",
        headline=one_line(headline), counts=counts,
        consequences=sum(each.finding.consequences for each in rest), first_ms=min(times, default=None),
        last_ms=max(times, default=None),
    )  # fmt: skip
    return Explained(finding, [failure for each in rest for failure in each.members])
