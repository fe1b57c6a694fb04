"""`make audit`: what is bad, what is good, and what could not be looked up are three different things."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "audit.py"


def run(directory: Path, locked: str, service: str) -> tuple[int, str]:
    """With doubles of the two tools that it asks, beside a Python that has everything else."""
    python = directory / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (directory / "bin" / "pip-audit").write_text(f"#!/bin/sh\n{service}\n")
    (directory / "bin" / "cyclonedx-py").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done; echo {} > $2\n")
    for tool in ("pip-audit", "cyclonedx-py"):
        (directory / "bin" / tool).chmod(0o755)
    (directory / "locked-collector.txt").write_text(locked)
    done = subprocess.run(
        [python, TOOL, directory / "locked-collector.txt", "--to", directory / "sbom"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    assert (directory / "sbom" / "collector.cdx.json").exists()
    return done.returncode, done.stdout


def answer(**package: object) -> str:
    return f"echo '{json.dumps({'dependencies': [{'name': 'msgspec', 'version': '1', **package}]})}'"


PINNED = f"msgspec=={version('msgspec')} \\\n    --hash=sha256:00\n"


@pytest.mark.parametrize(
    ("locked", "service", "code", "said"),
    [
        (PINNED, answer(vulns=[]), 0, "0 known to be bad, 0 that could not be looked up"),
        (PINNED, answer(vulns=[{"id": "X-1", "fix_versions": ["2"]}]), 1, "BAD      msgspec 1: X-1, mended in 2"),
        (PINNED, answer(skip_reason="away"), 3, "UNKNOWN  vulnerabilities of msgspec: away"),
        (PINNED, "echo 'no network' >&2; exit 1", 3, "of all packages of locked-collector.txt: no network"),
        ("not-there==1\n", answer(vulns=[]), 3, "UNKNOWN  licence of not-there: it is not installed here"),
        ("msgspec==0.0.1\n", answer(vulns=[]), 3, "UNKNOWN  licence of msgspec 0.0.1"),
    ],
)
def test_what_is_known_and_what_is_not(tmp_path: Path, locked: str, service: str, code: int, said: str) -> None:
    ended, text = run(tmp_path, locked, service)
    assert said in text
    assert ended == code
