"""`rayhistory dashboards`: install Ray Dashboard frontends with pip, from a wheel or from a directory."""

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

from rayhistory.cli.actions import Actions, run_action
from rayhistory.cli.text_table import align
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.server.frontend import INSTALL_HINT, NOT_INSTALLED, Frontends, is_frontend, is_version
from rayhistory.settings import Settings

_BUILD_DIR = "dashboard/client/build"
_WHEEL_PREFIX = f"ray/{_BUILD_DIR}/"
_MAX_FRONTEND_BYTES = 512 * 2**20
_PIP_ANY_PLATFORM = ["--platform=manylinux2014_x86_64", "--python-version=3.11", "--implementation=cp"]
"""Arguments with which pip accepts a wheel of any platform, because frontends do not depend on the platform."""
_SETTINGS = frozenset({"dashboard_dir", "cache_dir"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser, "dashboards", _SETTINGS, default=_list)
    actions.add("list", _list, "list installed frontends (default)")
    add = actions.add("add", _add, "install frontends")
    add.add_argument(
        "sources", nargs="+", metavar="VERSION|WHEEL|DIRECTORY",
        help="Ray version to download with pip, wheel of Ray, or directory",
    )  # fmt: skip
    add.add_argument(
        "--as", dest="version", default="", metavar="VERSION", help="version of a directory that does not contain it"
    )
    remove = actions.add("remove", _remove, "remove installed frontends")
    remove.add_argument("versions", nargs="+", metavar="VERSION", help="version, as shown by list")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return run_action(arguments, settings)


def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    installed = Frontends(settings.dashboard_dir).installed()
    if not installed:
        print(f"{NOT_INSTALLED}. {INSTALL_HINT}")
        return 0
    rows = [(each.version, "Ray" if each.from_ray else "added", str(each.path)) for each in installed]
    print(align([("VERSION", "SOURCE", "PATH"), *rows]))
    return 0


def _add(arguments: argparse.Namespace, settings: Settings) -> int:
    directory = Path(settings.dashboard_dir)
    for source in arguments.sources:
        _add_source(source, arguments.version, directory)
    return 0


def _remove(arguments: argparse.Namespace, settings: Settings) -> int:
    frontends = Frontends(settings.dashboard_dir)
    for version in arguments.versions:
        path = frontends.directory / version
        if not is_version(version) or not is_frontend(path):
            from_ray = any(each.version == version for each in frontends.installed())
            reason = "it is part of the installed Ray" if from_ray else f"it is not in {frontends.directory}"
            raise UsageError(f"cannot remove dashboard {version}: {reason}")
        try:
            _delete(path)
        except OSError as error:
            raise UsageError(f"cannot remove dashboard {version}: {error}") from None
        print(f"removed {version}")
    return 0


def _add_source(source: str, version: str, directory: Path) -> None:
    path = Path(source)
    if path.is_dir():
        build = _find_build(path)
        _install(build, directory, version or _version_of(build, path))
    elif source.endswith(".whl"):
        _add_wheel(path, directory, version)
    elif is_version(source):
        if is_frontend(directory / source):
            print(f"{source} is already in {directory}")
            return
        with tempfile.TemporaryDirectory() as scratch:
            _add_wheel(_download(source, Path(scratch)), directory, version)
    else:
        raise UsageError(
            f"{source!r} is not a source of a dashboard: use a version such as 2.60.0, a wheel of Ray, or a directory"
        )


def _find_build(directory: Path) -> Path:
    """Return the frontend's directory: the given one, or the one inside, if Ray's package or site-packages is given."""
    for below in (".", _BUILD_DIR, f"ray/{_BUILD_DIR}"):
        if is_frontend(directory / below):
            return (directory / below).resolve()
    raise UsageError(f"{directory} has no Ray Dashboard frontend: it has neither index.html nor {_WHEEL_PREFIX}")


def _version_of(build: Path, given: Path) -> str:
    """Return the version of the Ray package that contains the frontend, else the directory's name."""
    version_file = build.parents[2] / "_version.py" if len(build.parents) > 2 else build
    if version_file.is_file():
        match = re.search(r'^version = "([^"]+)"', version_file.read_text(), re.MULTILINE)
        if match:
            return match[1]
    if is_version(build.name):
        return build.name
    raise UsageError(f"cannot tell the Ray version of {given}: set it with --as 2.60.0")


def _download(version: str, scratch: Path) -> Path:
    """Download Ray's wheel with the configured pip."""
    base = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
            "--no-input", f"--dest={scratch}", f"ray=={version}"]  # fmt: skip
    print(f"downloading Ray {version} with pip (about 70 MB)", flush=True)
    first_error = ""
    for more in ([], _PIP_ANY_PLATFORM):
        done = subprocess.run([*base, *more], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return next(scratch.glob("*.whl"))
        first_error = first_error or done.stderr
        if "No matching distribution" not in done.stderr:
            break
    lines = [line for line in first_error.splitlines() if line.strip()] or ["no error message"]
    errors = [line for line in lines if "ERROR" in line] or lines
    raise RayHistoryError(f"pip could not download Ray {version}: {errors[-1].removeprefix('ERROR: ')}")


def _add_wheel(wheel: Path, directory: Path, version: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as package, tempfile.TemporaryDirectory() as scratch:
            matches = [re.fullmatch(r"ray-([^/]+)\.dist-info/METADATA", name) for name in package.namelist()]
            versions = [match[1] for match in matches if match]
            _unpack(package, Path(scratch))
            if not versions or not is_frontend(Path(scratch)):
                raise UsageError(f"{wheel} is not a Ray wheel with a dashboard")
            _install(Path(scratch), directory, version or versions[0])
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"cannot read the wheel {wheel}: {error}") from None


def _unpack(package: zipfile.ZipFile, target: Path) -> None:
    members = [info for info in package.infolist() if info.filename.startswith(_WHEEL_PREFIX) and not info.is_dir()]
    if sum(info.file_size for info in members) > _MAX_FRONTEND_BYTES:
        raise UsageError(f"the dashboard in {package.filename} is larger than {_MAX_FRONTEND_BYTES >> 20} MiB")
    for info in members:
        relative = PurePosixPath(info.filename.removeprefix(_WHEEL_PREFIX))
        if relative.is_absolute() or ".." in relative.parts:
            raise UsageError(f"{package.filename} is not safe to unpack: {info.filename!r} is outside of the wheel")
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(package.read(info))


def _install(source: Path, directory: Path, version: str) -> None:
    """Replace the frontend of this version atomically, so that a server never sees an incomplete one."""
    if not is_version(version):
        raise UsageError(f"{version!r} is not a Ray version: use one such as 2.60.0")
    _check_file_names(source, directory, version)
    target = directory / version
    with _temporary_directory(directory) as temporary:
        shutil.copytree(source, temporary)
        if target.exists():
            _delete(target)
        temporary.rename(target)
    print(f"added {version}: {target}")


def _check_file_names(source: Path, directory: Path, version: str) -> None:
    """Raise UsageError if a file differs from the file of the same name in the frontend of another version.

    The server finds files by name only.
    """
    for other in Frontends(str(directory)).installed():
        for path in (source / "static").rglob("*") if other.version != version else ():
            name = path.relative_to(source)
            twin = other.path / name
            if path.is_file() and twin.is_file() and path.read_bytes() != twin.read_bytes():
                raise UsageError(
                    f"the dashboards of Ray {version} and {other.version} have different files named {name}, and the "
                    f"server finds files by name only: remove {other.version} first"
                )


def _delete(path: Path) -> None:
    """Rename the directory before deleting it, so that a server never sees an incomplete one."""
    renamed = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    path.rename(renamed)
    shutil.rmtree(renamed)


@contextmanager
def _temporary_directory(directory: Path) -> Iterator[Path]:
    temporary = directory / f".half.{secrets.token_hex(4)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        raise UsageError(f"cannot write {directory}: {error}; choose another directory with --dashboard-dir") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
