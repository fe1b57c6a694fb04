"""`make audit` tells problems, accepted packages and failed lookups apart."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from support.paths import ROOT

TOOL = ROOT / "tools" / "audit.py"


def run(directory: Path, locked: str, pip_audit: str) -> tuple[int, str]:
    """Run the tool with doubles of pip-audit and cyclonedx-py."""
    python = directory / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (directory / "bin" / "pip-audit").write_text(f"#!/bin/sh\n{pip_audit}\n")
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


def pip_audit_output(**package: object) -> str:
    return f"echo '{json.dumps({'dependencies': [{'name': 'msgspec', 'version': '1', **package}]})}'"


PINNED = f"msgspec=={version('msgspec')} \\\n    --hash=sha256:00\n"


@pytest.mark.parametrize(
    ("locked", "pip_audit", "status", "line"),
    [
        (PINNED, pip_audit_output(vulns=[]), 0, "0 problems, 0 failed lookups"),
        (
            PINNED,
            pip_audit_output(vulns=[{"id": "X-1", "fix_versions": ["2"]}]),
            1,
            "PROBLEM  msgspec 1: X-1, fixed in 2",
        ),
        (PINNED, pip_audit_output(skip_reason="away"), 3, "UNKNOWN  vulnerabilities of msgspec: away"),
        (PINNED, "echo 'no network' >&2; exit 1", 3, "of all packages of locked-collector.txt: no network"),
        ("not-there==1\n", pip_audit_output(vulns=[]), 3, "UNKNOWN  license of not-there: package not installed"),
        ("msgspec==0.0.1\n", pip_audit_output(vulns=[]), 3, "UNKNOWN  license of msgspec 0.0.1"),
    ],
)
def test_audit_reports_problems_and_failed_lookups(
    tmp_path: Path, locked: str, pip_audit: str, status: int, line: str
) -> None:
    exit_status, output = run(tmp_path, locked, pip_audit)
    assert line in output
    assert exit_status == status
