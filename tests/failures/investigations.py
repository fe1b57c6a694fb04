"""Investigate the corpus as a coding agent does, by the Model Context Protocol: fixed sequences of calls.

`python -m failures.investigations --recordings DIRECTORY` prints, for each failure, after how many calls and tokens an
answer named the planted cause, and fails above 6 calls or 12,000 tokens.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from failures.cases import CASES
from rayhistory.sessions import SessionRef
from support.server_process import running_server

if TYPE_CHECKING:
    from mcp import Client

MAX_CALLS, MAX_TOKENS = 6, 12_000
_CHARS_PER_TOKEN = 4


class Investigation(msgspec.Struct):
    """What one sequence of calls cost, and after which call the cause was named (0 if it never was)."""

    case: str
    calls: int = 0
    tokens: int = 0
    found_after: int = 0
    tokens_when_found: int = 0

    @property
    def is_right(self) -> bool:
        return 0 < self.found_after <= MAX_CALLS and self.tokens_when_found <= MAX_TOKENS


async def investigate(client: "Client", case: str, ref: SessionRef) -> Investigation:
    """Look for the session, then go from the verdict to the failures, the logs and the gaps."""
    planted = CASES[case]
    causes = [code for code in (planted.verdict, *planted.allowed) if code]
    done = Investigation(case)
    session = {"session": ref.path}
    for tool, arguments in (
        ("find_sessions", {"namespace": ref.namespace, "limit": 5}),
        ("diagnose", session),
        ("get_failures", session),
        ("search_logs", {**session, "text": "Error|Fatal|killed", "regex": True}),
        ("timeline", session),
        ("list_gaps", session),
    ):
        text = await call(client, tool, arguments)
        done.calls += 1
        done.tokens += -(-len(text) // _CHARS_PER_TOKEN)
        if not done.found_after and any(cause in text for cause in causes):
            done.found_after, done.tokens_when_found = done.calls, done.tokens
    return done


async def call(client: "Client", tool: str, arguments: dict[str, Any]) -> str:
    result = await client.call_tool(tool, arguments)
    text = "".join(block.text for block in result.content)  # type: ignore[union-attr]
    if result.is_error:
        raise AssertionError(f"{tool}: {text}")
    return text


async def investigate_all(address: str, sessions: dict[str, SessionRef]) -> list[Investigation]:
    from mcp import Client  # takes a second, which is lost wherever pytest only lists the tests

    async with Client(f"{address}/mcp") as client:
        return [await investigate(client, case, ref) for case, ref in sessions.items()]


def table(investigations: list[Investigation]) -> str:
    lines = [f"{'case':<44} {'found after':>12} {'tokens':>8} {'all calls':>10} {'tokens':>8}"]
    for done in investigations:
        found = f"{done.found_after or '-':>12} {done.tokens_when_found or '-':>8}"
        lines.append(f"{done.case:<44} {found} {done.calls:>10} {done.tokens:>8}")
    right = sum(done.is_right for done in investigations)
    return "\n".join(
        [*lines, f"{right} of {len(investigations)} causes within {MAX_CALLS} calls and {MAX_TOKENS} tokens"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Investigate recorded failures by the Model Context Protocol.")
    parser.add_argument("cases", nargs="*", help="names of cases (default: all recorded failures)")
    parser.add_argument("--recordings", type=Path, required=True)
    arguments = parser.parse_args()
    names = arguments.cases or [name for name, case in CASES.items() if case.verdict]
    recorded = [name for name in names if (arguments.recordings / name / "session.json").exists()]
    with tempfile.TemporaryDirectory() as scratch:
        store, sessions = Path(scratch) / "store", {}
        for name in recorded:
            folder = arguments.recordings / name
            shutil.copytree(folder / "store", store, dirs_exist_ok=True, ignore=shutil.ignore_patterns("index"))
            sessions[name] = msgspec.json.decode((folder / "session.json").read_bytes(), type=SessionRef)
        index: list[str | Path] = [Path(sys.executable).with_name("rayhistory"), "index", "--store", f"file://{store}"]
        subprocess.run([*index, "--cache-dir", f"{scratch}/cache"], check=True, stdout=subprocess.DEVNULL)
        with running_server(store, Path(scratch) / "server", "--rate-limit", "0") as address:
            investigations = asyncio.run(investigate_all(address, sessions))
    print(table(investigations))
    sys.exit(0 if investigations and all(done.is_right for done in investigations) else 1)


if __name__ == "__main__":
    main()
