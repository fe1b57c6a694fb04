"""What can be said of the images without making them; `make test-kubernetes` makes them."""

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


def test_a_linter_finds_nothing_wrong() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_images_are_what_the_makefile_makes() -> None:
    said = subprocess.run(["make", "-n", "images"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in ("collector", "historyserver"):
        assert f"--target {name} " in said
        assert f"-t {name}:v0.1.0 " in said
    stages = [rest.split()[-1] for instruction, rest in parse(DOCKERFILE.read_text()) if instruction == "FROM"]
    assert stages[-2:] == ["collector", "historyserver"]


@pytest.mark.parametrize("image", ["collector", "historyserver"])
def test_what_is_locked_is_what_the_constraints_say(image: str) -> None:
    pinned = re.findall(r"^([^\s=]+==[^\s;]+)", (DEPLOY / f"docker/locked-{image}.txt").read_text(), re.MULTILINE)
    known = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert len(pinned) > 20
    assert {line.lower().replace("_", "-") for line in pinned} <= known, "make lock"


def test_the_collector_gets_a_part_of_what_the_project_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = requirement_names((DEPLOY / "docker/collector.txt").read_text().splitlines())
    known = requirement_names([*project["dependencies"], *project["optional-dependencies"]["oss"]])
    assert listed < known
    assert "duckdb" not in listed
