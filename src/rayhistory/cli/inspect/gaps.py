"""`rayhistory gaps`: missing or incomplete data of a session, the reasons, and how to avoid them."""

import argparse
import asyncio
import sys

import msgspec

from rayhistory.cli import output
from rayhistory.cli.client import open_client
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.server.history_api.api_types import SessionGap, SessionGaps
from rayhistory.settings import Settings

_TYPES = {"count": "BIGINT", "loss": "BOOLEAN"}
_INDENT = "\n    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_arguments(parser)
    output.add_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    found = asyncio.run(_gaps(arguments, settings))
    if arguments.json or arguments.csv or arguments.parquet:
        names = SessionGap.__struct_fields__
        with output.row_writer(arguments, names, _TYPES) as add:
            add(msgspec.structs.astuple(gap) for gap in found.gaps)
    elif found.gaps:
        print("\n\n".join(map(_describe, found.gaps)))
    total = sum(each.gaps for each in found.totals.values())
    if total > len(found.gaps):
        sys.stderr.write(f"Only {len(found.gaps):,} of {total:,} gaps are listed.\n")
    if found.complete:
        notes = " The gaps above are informational." if found.gaps else ""
        sys.stderr.write(f"The session is complete.{notes}\n")
    return 0


async def _gaps(arguments: argparse.Namespace, settings: Settings) -> SessionGaps:
    async with open_client(arguments, settings) as client:
        return await client.json("api/history/gaps", SessionGaps)


def _describe(gap: SessionGap) -> str:
    location = ", ".join(filter(None, (gap.place, gap.detail)))
    remedy = f"How to avoid it: {gap.remedy}" if gap.loss else ""
    lines = filter(None, (f"{gap.summary} ({gap.code})", location, gap.meaning, remedy))
    return _INDENT.join(map(output.printable, lines))
