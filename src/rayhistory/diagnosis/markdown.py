"""A diagnosis as Markdown, for tickets. All text from the cluster is escaped or fenced."""

import html
import re
from collections.abc import Iterator

from rayhistory.diagnosis.findings import CriticalPath, Diagnosis, Finding
from rayhistory.diagnosis.headlines import duration, one_line, plural, things, utc
from rayhistory.diagnosis.tracebacks import excerpt

_SPECIAL = re.compile(r"([\\`*_{}\[\]()+!|~@])")
_MAX_EVIDENCE_LINES = 40
_MAX_LINE = 1_000


def to_markdown(diagnosis: Diagnosis, title: str) -> str:
    """Return the whole diagnosis as text."""
    return "\n".join(_lines(diagnosis, title)).rstrip() + "\n"


def _lines(diagnosis: Diagnosis, title: str) -> Iterator[str]:
    yield f"# {escaped(title)}"
    yield ""
    verdict = diagnosis.verdict
    yield f"**{escaped(verdict.headline)}**" if verdict else "No failed job was found."
    yield ""
    if verdict:
        yield f"`{verdict.code}`, {verdict.confidence}"
        yield ""
    if diagnosis.provisional:
        yield "Provisional: the session was still running at that time."
        yield ""
    for finding in diagnosis.findings:
        yield from _finding(finding)
    if diagnosis.time_shares:
        yield "## Where time went"
        yield ""
        total = sum(share.ms for share in diagnosis.time_shares) or 1
        for share in diagnosis.time_shares:
            yield f"- {share.state.replace('_', ' ')}: {duration(share.ms)} ({share.ms / total:.0%})"
        yield ""
    if diagnosis.critical_path:
        yield from _path(diagnosis.critical_path)
    if diagnosis.skipped:
        yield "## Not checked"
        yield ""
        yield from (f"- `{skipped.code}`: {skipped.reason}" for skipped in diagnosis.skipped)


def _path(path: CriticalPath) -> Iterator[str]:
    yield "## Critical path (approximate)"
    yield ""
    yield f"{plural(path.tasks, 'task')} in sequence took {duration(path.run_ms)} of {duration(path.span_ms)}."
    yield ""
    yield from (
        f"- {escaped(step.function)}: {plural(step.tasks, 'task')}, {duration(step.run_ms)}" for step in path.steps
    )
    yield ""


def _finding(finding: Finding) -> Iterator[str]:
    yield f"## {escaped(finding.headline)}"
    yield ""
    parts = [f"`{finding.code}`", finding.severity, finding.confidence, things(finding.counts)]
    if finding.first_ms is not None:
        parts.append(utc(finding.first_ms))
    yield " · ".join(part for part in parts if part)
    yield ""
    for text in (finding.detail, f"Suggestion: {finding.suggestion}" if finding.suggestion else ""):
        if text:
            yield escaped(text)
            yield ""
    for evidence in finding.evidence:
        yield f"Evidence: {escaped(f'{evidence.kind} {evidence.id}'.strip())}"
        yield ""
        yield from _fenced(evidence.text)
        yield ""


def escaped(text: str) -> str:
    """Return the text in one line, with Markdown and HTML escaped."""
    return _SPECIAL.sub(r"\\\1", html.escape(one_line(text, _MAX_LINE), quote=False))


def _fenced(text: str) -> Iterator[str]:
    """Yield the last lines, or a shortened traceback, in a code block that the text cannot close."""
    lines = [line[:_MAX_LINE] for line in excerpt(text, _MAX_EVIDENCE_LINES).splitlines()]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}text"
    yield from ("".join(char if char.isprintable() or char == "\t" else " " for char in line) for line in lines)
    yield fence
