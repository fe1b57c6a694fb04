"""Links from evidence to the pages of the dashboard that show it."""

from urllib.parse import quote

import msgspec

from rayhistory.diagnosis.findings import Diagnosis, Evidence

_PAGES = {
    "task": "#/tasks/{}", "actor": "#/actors/{}", "node": "#/cluster/nodes/{}", "metric": "#/cluster/nodes/{}",
    "job": "#/jobs/{}", "platform_event": "#/platform-events",
}  # fmt: skip


def with_links(diagnosis: Diagnosis, base: str) -> Diagnosis:
    """Return the diagnosis with the URL of each piece of evidence; `base` is the path of the session."""
    findings = [
        msgspec.structs.replace(finding, evidence=[_linked(each, base) for each in finding.evidence])
        for finding in diagnosis.findings
    ]
    return msgspec.structs.replace(diagnosis, findings=findings)


def _linked(evidence: Evidence, base: str) -> Evidence:
    page = evidence.url or (_PAGES.get(evidence.kind, "").format(quote(evidence.id, safe="")) if evidence.id else "")
    return msgspec.structs.replace(evidence, url=f"{base.rstrip('/')}/{page}" if page else None)
