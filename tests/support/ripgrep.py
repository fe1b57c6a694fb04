"""The real ripgrep, as the reference for searches."""

import base64
import json
import subprocess
import sys
from pathlib import Path

RG = Path(sys.executable).with_name("rg")

Match = tuple[str, int, int, bytes, tuple[tuple[int, int], ...]]
"""Path, line, offset, text without its line break, and matches in bytes."""


class RipgrepError(Exception):
    """The pattern is not valid for ripgrep."""


def ripgrep(directory: Path, pattern: str, *flags: str) -> list[Match]:
    """Return all matching lines below a directory, sorted by path and line."""
    command: list[str | Path] = [
        RG,
        "--json",
        "--text",
        "--no-ignore",
        "--hidden",
        "--encoding=none",
        "--threads=1",
        *flags,
    ]
    done = subprocess.run(
        [*command, "--file=-", "."], input=pattern.encode() + b"\n", cwd=directory, capture_output=True, check=False
    )
    if done.returncode > 1:
        raise RipgrepError(done.stderr.decode(errors="replace"))
    found = []
    for line in done.stdout.splitlines():
        event = json.loads(line)
        if event["type"] == "match":
            data = event["data"]
            spans = tuple((each["start"], each["end"]) for each in data["submatches"])
            text = _bytes(data["lines"]).removesuffix(b"\n")
            path = _bytes(data["path"]).decode().removeprefix("./")
            found.append((path, data["line_number"], data["absolute_offset"], text, spans))
    return sorted(found)


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])
