"""Directories of the project that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
DOCS = ROOT / "docs"
SAMPLE_JOB = ROOT / "src/rayhistory/cli/local_ray/sample_job.py"
"""Path of the sample job. Tests do not import it, because it imports Ray, which takes half a second."""
