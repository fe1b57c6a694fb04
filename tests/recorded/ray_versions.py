"""Which versions of Ray there are to test with: each is an interpreter that has it."""

import os
import sys
from pathlib import Path

HERE = sys.executable
PYTHONS = [HERE, *filter(None, os.environ.get("RAYHISTORY_TEST_RAYS", "").split(":"))]
"""Ours, and those that the environment names (`make test-matrix`)."""
LIBRARIES = list(filter(None, [os.environ.get("RAYHISTORY_TEST_LIBRARIES")]))
"""One that has Ray's libraries too, if the environment names it."""


def name(python: str) -> str:
    return Path(python).parents[1].name


def ray_command(python: str) -> Path:
    return Path(python).with_name("ray")
