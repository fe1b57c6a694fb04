"""`rayhistory dashboards`: the frontends of several versions of Ray, got with pip, from a wheel or from a directory."""

import argparse
import lzma
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from rayhistory.cli.output import table
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.server.frontend import ABSENT, ADVICE, Frontends, is_frontend, is_version
from rayhistory.settings import Settings

_BUILD = "dashboard/client/build"
_IN_WHEEL = f"ray/{_BUILD}/"
_LARGEST = 512 * 2**20
# A frontend is the same for every machine: any wheel will do where there is none for this one.
_ANY_WHEEL = ["--platform=manylinux2014_x86_64", "--python-version=3.11", "--implementation=cp"]


def run_list(arguments: argparse.Namespace, settings: Settings) -> int:
    installed = Frontends(settings.dashboard_dir).installed()
    if not installed:
        print(f"{ABSENT}. {ADVICE}")
        return 0
    rows = [(each.version, "comes with Ray" if each.from_ray else "added", str(each.path)) for each in installed]
    print(table([("VERSION", "", "WHERE"), *rows]))
    return 0


def run_add(arguments: argparse.Namespace, settings: Settings) -> int:
    place = Path(settings.dashboard_dir)
    for what in arguments.what:
        _add(what, arguments.called, place)
    return 0


def run_remove(arguments: argparse.Namespace, settings: Settings) -> int:
    frontends = Frontends(settings.dashboard_dir)
    for version in arguments.versions:
        path = frontends.directory / version
        if not is_version(version) or not is_frontend(path):
            there = [each for each in frontends.installed() if each.version == version]
            reason = "it comes with the Ray of this environment" if there else f"it is not in {frontends.directory}"
            raise UsageError(f"dashboard {version} cannot be removed: {reason}")
        try:
            _remove(path)
        except OSError as error:
            raise UsageError(f"dashboard {version} cannot be removed: {error}") from None
        print(f"removed {version}")
    return 0


def _add(what: str, called: str, place: Path) -> None:
    path = Path(what)
    if path.is_dir():
        source = _build_in(path)
        _put(source, place, called or _version_of(source, path))
    elif what.endswith(".whl"):
        _add_wheel(path, place, called)
    elif is_version(what):
        if is_frontend(place / what):
            print(f"{what} is in {place} already")
            return
        with tempfile.TemporaryDirectory() as scratch:
            _add_wheel(_download(what, Path(scratch)), place, called)
    else:
        raise UsageError(f"{what!r} is neither a version such as 2.60.0, nor a wheel of Ray, nor a directory")


def _build_in(directory: Path) -> Path:
    """Where the frontend is: the directory itself, or in its place in a package or an environment."""
    for below in (".", _BUILD, f"ray/{_BUILD}"):
        if is_frontend(directory / below):
            return (directory / below).resolve()
    raise UsageError(f"{directory} holds no Ray Dashboard frontend: there is no index.html, nor {_IN_WHEEL}")


def _version_of(source: Path, named: Path) -> str:
    """What the Ray around the frontend says of itself, else the directory's name."""
    about = source.parents[2] / "_version.py" if len(source.parents) > 2 else source
    if about.is_file() and (found := re.search(r'^version = "([^"]+)"', about.read_text(), re.MULTILINE)):
        return found[1]
    if is_version(source.name):
        return source.name
    raise UsageError(f"{named} does not tell its version: say it with --as 2.60.0")


def _download(version: str, scratch: Path) -> Path:
    """The wheel, from wherever pip gets its packages here."""
    base = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
            "--no-input", f"--dest={scratch}", f"ray=={version}"]  # fmt: skip
    print(f"getting Ray {version} with pip (about 70 MB)", flush=True)
    said = ""
    for more in ([], _ANY_WHEEL):
        done = subprocess.run([*base, *more], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return next(scratch.glob("*.whl"))
        said = said or done.stderr
        if "No matching distribution" not in done.stderr:
            break
    lines = [line for line in said.splitlines() if line.strip()] or ["it did not say why"]
    errors = [line for line in lines if "ERROR" in line] or lines
    raise RayHistoryError(f"pip could not get Ray {version}: {errors[-1].removeprefix('ERROR: ')}")


def _add_wheel(wheel: Path, place: Path, called: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as package, tempfile.TemporaryDirectory() as scratch:
            found = [re.fullmatch(r"ray-([^/]+)\.dist-info/METADATA", name) for name in package.namelist()]
            versions = [match[1] for match in found if match]
            _unpack(package, Path(scratch))
            if not versions or not is_frontend(Path(scratch)):
                raise UsageError(f"{wheel} is no wheel of Ray with a dashboard in it")
            _put(Path(scratch), place, called or versions[0])
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"{wheel} cannot be read as a wheel: {error}") from None


def _unpack(package: zipfile.ZipFile, target: Path) -> None:
    members = [info for info in package.infolist() if info.filename.startswith(_IN_WHEEL) and not info.is_dir()]
    if sum(info.file_size for info in members) > _LARGEST:
        raise UsageError(f"the dashboard in {package.filename} is larger than any: {_LARGEST >> 20} MiB")
    for info in members:
        relative = PurePosixPath(info.filename.removeprefix(_IN_WHEEL))
        if relative.is_absolute() or ".." in relative.parts:
            raise UsageError(f"{package.filename} is damaged: {info.filename!r} lies outside of it")
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(package.read(info))


def _put(source: Path, place: Path, version: str) -> None:
    """In the place of what was there, at once: a server sees all of it or nothing."""
    if not is_version(version):
        raise UsageError(f"{version!r} is no version: use one such as 2.60.0")
    _check_names(source, place, version)
    target = place / version
    with _beside(place) as half:
        shutil.copytree(source, half)
        if target.exists():
            _remove(target)
        half.rename(target)
    print(f"added {version}: {target}")


def _check_names(source: Path, place: Path, version: str) -> None:
    """Pages find their files by name among all dashboards: so one name must not stand for two contents."""
    for other in Frontends(str(place)).installed():
        for path in (source / "static").rglob("*") if other.version != version else ():
            name = path.relative_to(source)
            twin = other.path / name
            if path.is_file() and twin.is_file() and path.read_bytes() != twin.read_bytes():
                raise UsageError(f"{name} of {version} is another file than that of {other.version}: only one can be")


def _remove(path: Path) -> None:
    gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    path.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    half = place / f".half.{secrets.token_hex(4)}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        yield half
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error}; name another with --dashboard-dir") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
