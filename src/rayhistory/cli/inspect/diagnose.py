"""`rayhistory diagnose`: why a session failed and why it was slow. Exits with 3 if a failure was found."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

import msgspec

from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.diagnosis.earlier_runs import COMPARISON_CODES
from rayhistory.diagnosis.findings import Diagnosis, Finding
from rayhistory.diagnosis.headlines import plural, things
from rayhistory.diagnosis.tracebacks import excerpt
from rayhistory.settings import Settings

FAILURE_FOUND = 3
_EVIDENCE_LINES, _SHORT_EVIDENCE_LINES = 20, 8
_INDENT = "    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON, as the API returns it")
    formats.add_argument("--md", action="store_true", help="print Markdown, for a ticket")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.md:
        return asyncio.run(_print_markdown(arguments, settings))
    found = asyncio.run(read_diagnosis(arguments, settings))
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    else:
        print("\n".join(describe(found)))
    return exit_code(found)


async def read_diagnosis(arguments: argparse.Namespace, settings: Settings) -> Diagnosis:
    """Return the diagnosis of the session that the arguments name."""
    async with open_client(arguments, settings) as client:
        return await client.json("api/history/diagnosis", Diagnosis)


async def _print_markdown(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_client(arguments, settings) as client:
        async for chunk in client.stream("diagnosis.md"):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return exit_code(await client.json("api/history/diagnosis", Diagnosis))


def exit_code(found: Diagnosis) -> int:
    """Return 3 if the diagnosis has a verdict, because the session failed; else 0."""
    return FAILURE_FOUND if found.verdict else 0


def describe(found: Diagnosis) -> Iterator[str]:
    """Yield the lines of a diagnosis for a terminal."""
    if found.verdict:
        yield output.printable(f"{found.verdict.headline} ({found.verdict.code}, {found.verdict.confidence})")
    else:
        yield "No failed job was found."
    if found.provisional:
        yield "Provisional: the session had not ended."
    for number, finding in enumerate(found.findings):
        yield ""
        is_verdict = found.verdict is not None and found.verdict.finding == number
        yield from _finding(finding, with_headline=not is_verdict)
    comparisons = [skipped for skipped in found.skipped if skipped.code in COMPARISON_CODES]
    others = [skipped for skipped in found.skipped if skipped.code not in COMPARISON_CODES]
    for text, skipped in (("Not compared", comparisons), (f"{plural(len(others), 'rule')} could not run", others)):
        if skipped:
            yield ""
            yield f"{text}: {'; '.join(sorted({each.reason for each in skipped}))}."


def _finding(finding: Finding, *, with_headline: bool) -> Iterator[str]:
    if with_headline:
        yield output.printable(f"{finding.severity}: {finding.headline} ({finding.code}, {finding.confidence})")
    affected = things(finding.counts)
    for name, text in (("Affected: ", affected), ("", finding.detail), ("Suggestion: ", finding.suggestion)):
        if text:
            yield output.printable(f"{_INDENT}{name}{text}")
    for line in _evidence(finding):
        yield output.printable(f"{_INDENT}{line}")


def _evidence(finding: Finding) -> Iterator[str]:
    """Yield the first evidence, if the finding is critical, and the first evidence with several lines of text."""
    is_critical = finding.severity == "critical"
    long = next((evidence for evidence in finding.evidence if "\n" in evidence.text.strip()), None)
    first = finding.evidence[0] if is_critical and finding.evidence else None
    for evidence in dict.fromkeys(each for each in (first, long) if each):
        yield f"{evidence.kind} {evidence.id}:"
        lines = excerpt(evidence.text, _EVIDENCE_LINES if is_critical else _SHORT_EVIDENCE_LINES).splitlines()
        yield from (f"| {line}" for line in lines)


def verdict_paragraph(found: Diagnosis) -> str:
    """Return the verdict, its suggestion and evidence, to print after a failed job; an empty text without a verdict."""
    if found.verdict is None:
        return ""
    finding = found.findings[found.verdict.finding]
    lines = [
        f"Why it failed: {finding.headline} ({finding.code}, {finding.confidence})",
        f"Suggestion: {finding.suggestion}" if finding.suggestion else "",
        *_evidence(finding),
    ]
    return "\n".join(output.printable(line) for line in lines if line)
