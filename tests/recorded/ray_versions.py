"""The Python interpreters to test with, each with its own version of Ray."""

import os
import sys
from pathlib import Path

THIS_PYTHON = sys.executable
PYTHONS = [THIS_PYTHON, *filter(None, os.environ.get("RAYHISTORY_TEST_RAYS", "").split(":"))]
"""This interpreter, and those named by the environment (`make test-matrix`)."""
LIBRARIES = list(filter(None, [os.environ.get("RAYHISTORY_TEST_LIBRARIES")]))
"""An interpreter with Ray Data and Ray Serve, if the environment names one."""


def name(python: str) -> str:
    return Path(python).parents[1].name


def ray_command(python: str) -> Path:
    return Path(python).with_name("ray")
