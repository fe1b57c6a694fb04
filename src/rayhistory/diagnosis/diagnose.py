"""The entry point of the diagnosis: a pure function from facts to findings."""

import msgspec

from rayhistory.diagnosis.critical_path import estimate_critical_path
from rayhistory.diagnosis.earlier_runs import skipped_comparisons
from rayhistory.diagnosis.env_redaction import redacted
from rayhistory.diagnosis.explain import explain_failures
from rayhistory.diagnosis.findings import Diagnosis, Finding, SkippedRule, TimeShare
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES
from rayhistory.diagnosis.session_facts import RUNNING, SessionFacts
from rayhistory.diagnosis.verdict import find_verdict, rank
from rayhistory.diagnosis.whole_messages import with_whole_messages

_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}
_REASONS = {"logs": "no log files were recorded", "metrics": "no metrics were recorded"}


def diagnose(facts: SessionFacts, *, provisional: bool = False) -> Diagnosis:
    """Diagnose a session: its failures first, then slowness and missing data."""
    facts = _ordered(with_whole_messages(facts))
    ranked = rank(explain_failures(facts), facts)
    findings = [each.finding for each in ranked]
    others = [finding for rule in SESSION_RULES if not _missing(rule.needs, facts) for finding in rule.find(facts)]
    found = Diagnosis(
        verdict=find_verdict(ranked, facts),
        findings=[*findings, *sorted(others, key=_order)],
        skipped=[*_skipped(facts), *skipped_comparisons(None)],
        provisional=provisional or facts.state == RUNNING,
        time_shares=_time_shares(facts),
        states=facts.states,
        critical_path=estimate_critical_path(facts),
        started_ms=facts.started_ms,
        ended_ms=facts.ended_ms,
    )
    return redacted(found, facts.env_values)


def _ordered(facts: SessionFacts) -> SessionFacts:
    """Sort by time, then by id, so that deaths at the same time have the same order in every run."""
    return msgspec.structs.replace(
        facts,
        nodes=sorted(facts.nodes, key=lambda node: (node.end_ms or 0, node.node_id)),
        workers=sorted(facts.workers, key=lambda worker: (worker.end_ms or 0, worker.worker_id)),
        actors=sorted(facts.actors, key=lambda actor: (actor.end_ms or 0, actor.actor_id)),
    )


def _order(finding: Finding) -> tuple[int, int]:
    return _SEVERITIES[finding.severity], -finding.counts.total


def _missing(needs: tuple[str, ...], facts: SessionFacts) -> list[str]:
    present = {"logs": facts.has_logs, "metrics": facts.has_metrics}
    return [need for need in needs if not present[need]]


def _skipped(facts: SessionFacts) -> list[SkippedRule]:
    needs = {rule.code: rule.needs for rule in FAILURE_RULES} | {rule.code: rule.needs for rule in SESSION_RULES}
    return [
        SkippedRule(code, " and ".join(_REASONS[need] for need in missing))
        for code, of_rule in needs.items()
        if (missing := _missing(of_rule, facts))
    ]


def _time_shares(facts: SessionFacts) -> list[TimeShare]:
    values = msgspec.structs.asdict(facts.times)
    return [
        TimeShare(name.removesuffix("_ms"), value)
        for name, value in values.items()
        if name.endswith("_ms") and name != "failed_ms" and value > 0
    ]
