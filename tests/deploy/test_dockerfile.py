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


def test_release_images_have_the_tag_that_the_release_stores() -> None:
    """`make images` alone builds the default tag, which `docker save` of another tag does not find."""
    workflow = (ROOT / ".github/workflows/release.yaml").read_text()
    assert "make images TAG=$GITHUB_REF_NAME\n" in workflow
    assert "docker save collector:$GITHUB_REF_NAME historyserver:$GITHUB_REF_NAME" in workflow


DOCTOR = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from rayhistory.cli.main import main
sys.argv = ["rayhistory", "doctor", "--as", "collector", "--namespace", "team-a", "--store", sys.argv[1]]
sys.exit(main())
"""
ONLY_IN_THE_SERVER = ("arro3", "duckdb", "jinja2", "numpy", "promql_parser", "re2", "rich", "websockets", "yaml")


def test_doctor_runs_with_the_packages_of_the_collector_image(tmp_path: Path) -> None:
    """The guides run it in the collector's container, whose image has no database and no pages."""
    locked = (DEPLOY / "docker/locked-collector.txt").read_text()
    assert [name for name in ONLY_IN_THE_SERVER if re.search(rf"^{name}\b", locked, re.MULTILINE)] == []
    code = DOCTOR.replace("{absent}", repr(ONLY_IN_THE_SERVER))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok    store: write below ray-history/logs/team-a/" in done.stdout
