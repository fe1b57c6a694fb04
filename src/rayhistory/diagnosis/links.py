"""Links from evidence to the pages of the dashboard that show it."""

from urllib.parse import quote

import msgspec

from rayhistory.diagnosis.findings import Diagnosis, Evidence

_PAGES = {
    "task": "#/tasks/{}", "actor": "#/actors/{}", "node": "#/cluster/nodes/{}",
    "metric": "#/cluster/nodes/{}",
    "job": "#/jobs/{}", "platform_event": "#/platform-events",
}  # fmt: skip


_CHARTS = "grafana/d/rayDefaultDashboard/?from={}&to={}"
_BEFORE_MS, _AFTER_MS = 300_000, 60_000


def with_links(diagnosis: Diagnosis, base: str) -> Diagnosis:
    """Return the diagnosis with the URL of each piece of evidence; `base` is the path of the session."""
    findings = [
        msgspec.structs.replace(finding, evidence=[_linked(each, base) for each in finding.evidence])
        for finding in diagnosis.findings
    ]
    return msgspec.structs.replace(diagnosis, findings=findings)


def _linked(evidence: Evidence, base: str) -> Evidence:
    page = evidence.url or _page(evidence)
    return msgspec.structs.replace(evidence, url=f"{base.rstrip('/')}/{page}" if page else None)


def _page(evidence: Evidence) -> str:
    """Return the page that shows a piece of evidence. For metrics samples, this is the page of charts at their time."""
    if evidence.kind == "metric" and evidence.at_ms is not None:
        return _CHARTS.format(evidence.at_ms - _BEFORE_MS, evidence.at_ms + _AFTER_MS)
    return _PAGES.get(evidence.kind, "").format(quote(evidence.id, safe="")) if evidence.id else ""
