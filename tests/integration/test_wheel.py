"""The wheel contains every module, the pages and their assets, type information, entry points and the license."""

import configparser
import email
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

PACKAGE = ROOT / "src/rayhistory"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel that is built offline from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(target)!r})"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def files_in_source(*patterns: str) -> set[str]:
    found = (path for pattern in patterns for path in PACKAGE.rglob(pattern) if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in found if "__pycache__" not in path.parts}


def test_every_module_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    modules = files_in_source("*.py")
    assert len(modules) > 100
    assert modules <= set(wheel.namelist())


def test_every_package_has_an_init_module() -> None:
    """Setuptools leaves folders without one out of the wheel."""
    folders = {Path(module).parent for module in files_in_source("*.py")}
    assert all((ROOT / "src" / folder / "__init__.py").exists() for folder in folders)


def test_templates_and_static_files_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assets = {path for path in files_in_source("*") if not path.endswith((".py", ".pyc"))}
    assert any("/templates/" in path for path in assets)
    assert any("/static/" in path for path in assets)
    assert assets <= set(wheel.namelist())


def test_type_information_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert "rayhistory/py.typed" in wheel.namelist()


def test_nothing_else_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files_in_source("*")


def test_license_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    text = metadata(wheel, "licenses/LICENSE")
    assert text == (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    head = email.message_from_string(metadata(wheel, "METADATA"))
    assert head["License-Expression"] == "Apache-2.0"
    assert head.get_all("License-File") == ["LICENSE"]


def test_package_metadata_is_complete(wheel: zipfile.ZipFile) -> None:
    head = email.message_from_string(metadata(wheel, "METADATA"))
    for field in ("Summary", "Keywords", "Author", "Requires-Python", "Description-Content-Type"):
        assert head[field], field
    assert "Typing :: Typed" in head.get_all("Classifier", [])
    assert {"ray", "oss", "kubernetes"} <= set(head.get_all("Provides-Extra", []))
    assert "make run" in head.get_payload()


def test_entry_points_name_functions_that_exist(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    assert set(parser["console_scripts"]) == {"rayhistory", "collector", "historyserver"}
    assert set(parser["rayhistory.storage"]) == {"local", "localtest", "s3", "gcs", "azureblob", "aliyunoss"}
    for section in parser.sections():
        for target in parser[section].values():
            module, _, function = target.partition(":")
            source = (ROOT / "src" / module.replace(".", "/")).with_suffix(".py").read_text()
            assert f"def {function}(" in source
