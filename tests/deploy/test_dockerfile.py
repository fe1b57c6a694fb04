"""Checks of the Dockerfile that need no build; `make test-kubernetes` builds the images."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.dockerfile import parse
from deploy.files import DEPLOY, ROOT

DOCKERFILE = DEPLOY / "docker/Dockerfile"


def requirement_names(lines: list[str]) -> set[str]:
    return {line.partition("~")[0].partition(">")[0].strip() for line in lines if line and line[0] != "#"}


def test_hadolint_finds_no_problem() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_makefile_builds_the_images_of_the_dockerfile() -> None:
    commands = subprocess.run(["make", "-n", "images"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in ("collector", "historyserver"):
        assert f"--target {name} " in commands
        assert f"-t {name}:v0.1.0 " in commands
    chosen = ["make", "-n", "images", "TAG=v0.1.0-2", "PLATFORM=linux/arm64"]
    commands = subprocess.run(chosen, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert commands.count("--platform linux/arm64 ") == commands.count(":v0.1.0-2 ") == 2
    stages = [rest.split()[-1] for instruction, rest in parse(DOCKERFILE.read_text()) if instruction == "FROM"]
    assert stages[-2:] == ["collector", "historyserver"]


@pytest.mark.parametrize("image", ["collector", "historyserver"])
def test_locked_versions_are_those_of_the_constraints(image: str) -> None:
    pinned = re.findall(r"^([^\s=]+==[^\s;]+)", (DEPLOY / f"docker/locked-{image}.txt").read_text(), re.MULTILINE)
    constraints = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert len(pinned) > 20
    assert {line.lower().replace("_", "-") for line in pinned} <= constraints, "make lock"


def test_collector_image_has_a_subset_of_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = requirement_names((DEPLOY / "docker/collector.txt").read_text().splitlines())
    dependencies = requirement_names([*project["dependencies"], *project["optional-dependencies"]["oss"]])
    assert listed < dependencies
    assert "duckdb" not in listed
