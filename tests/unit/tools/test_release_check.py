"""`make release-check` finds files that name another version."""

import shutil
import sys
import zipfile
from pathlib import Path

from support.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from release_check import version_of, version_problems, wheel_problems

FILES = ("pyproject.toml", "Makefile", "CHANGELOG.md", "deploy/helm/ray-history-server/Chart.yaml")


def test_versions_of_this_repository_are_equal() -> None:
    assert version_problems(ROOT) == []


def test_file_with_another_version_is_named(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace(f'version = "{version_of(ROOT)}"', 'version = "9.8.7"', 1))
    assert sorted(problem.partition(":")[0] for problem in version_problems(tmp_path)) == sorted(FILES[1:])


def test_missing_or_incomplete_wheel_is_reported(tmp_path: Path) -> None:
    assert wheel_problems([], "1.0") == ["dist: no wheel of version 1.0"]
    wheel = tmp_path / "rayhistory-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rayhistory/py.typed", "")
    assert any("base.html is missing" in problem for problem in wheel_problems([wheel], "1.0"))
