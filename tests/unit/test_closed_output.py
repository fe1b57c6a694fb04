"""Programs go on when the reader of their output has closed the pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINT = """
import sys
from rayhistory.closed_output import write_or_discard
for number in range(3):
    write_or_discard(sys.stdout, f"{number}\\n")
    write_or_discard(sys.stderr, f"{number}\\n")
"""
STATUS = """
from rayhistory.cli.local_ray.recording import print_status
for number in range(3):
    print_status("stopping the job")
"""


@pytest.mark.parametrize("code", [PRINT, STATUS], ids=["print", "status"])
def test_program_ends_normally_after_its_output_was_closed(code: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = f"{code}\nopen({str(tmp_path / 'end')!r}, 'w').close()"
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=writer, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, (tmp_path / "end").exists()) == (0, True)
