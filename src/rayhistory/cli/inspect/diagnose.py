"""`rayhistory diagnose`: why a session failed and why it was slow. Exits with 3 if a failure was found."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

import msgspec

from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.diagnosis.findings import Diagnosis, Finding
from rayhistory.diagnosis.headlines import things
from rayhistory.settings import Settings

FAILURE_FOUND = 3
_EVIDENCE_LINES = 12
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
    """Return 3 if the session failed."""
    return FAILURE_FOUND if found.verdict else 0


def describe(found: Diagnosis) -> Iterator[str]:
    """Yield the lines of a diagnosis for a terminal."""
    if found.verdict:
        yield output.printable(f"{found.verdict.headline} ({found.verdict.code}, {found.verdict.confidence})")
    else:
        yield "No failure was found."
    if found.provisional:
        yield "Provisional: the session is still running."
    for number, finding in enumerate(found.findings):
        yield ""
        is_verdict = found.verdict is not None and found.verdict.finding == number
        yield from _finding(finding, with_headline=not is_verdict)
    if found.skipped:
        yield ""
        reasons = sorted({skipped.reason for skipped in found.skipped})
        yield f"{len(found.skipped)} rules could not run: {'; '.join(reasons)}."


def _finding(finding: Finding, *, with_headline: bool) -> Iterator[str]:
    if with_headline:
        yield output.printable(f"{finding.severity}: {finding.headline} ({finding.code}, {finding.confidence})")
    affected = things(finding.counts)
    for text in (f"Affected: {affected}" if affected else "", finding.detail, finding.suggestion):
        if text:
            yield output.printable(f"{_INDENT}{text}")
    if finding.severity == "critical":
        for evidence in finding.evidence[:1]:
            yield output.printable(f"{_INDENT}{evidence.kind} {evidence.id}:")
            yield from (
                output.printable(f"{_INDENT}| {line}") for line in evidence.text.splitlines()[-_EVIDENCE_LINES:]
            )


def verdict_paragraph(found: Diagnosis) -> str:
    """Return the verdict and its suggestion, for the end of a failed run; empty if there is none."""
    if found.verdict is None:
        return ""
    finding = found.findings[found.verdict.finding]
    lines = [f"Why it failed: {finding.headline} ({finding.code}, {finding.confidence})", finding.suggestion]
    return "\n".join(output.printable(line) for line in lines if line)
