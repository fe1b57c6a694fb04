"""Ray's dashboard frontends, unmodified: the installed versions, the version for a session, and their files.

The request for a file does not name a version. File names contain a digest of the content, so the file is looked up by
its name in all versions. No cookie is needed, and two tabs can show two versions.
"""

import importlib.metadata
import importlib.util
import mimetypes
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
from starlette.responses import FileResponse, HTMLResponse, Response

from rayhistory.errors import UsageError
from rayhistory.server.http.responses import text_response

_CACHE_FOR_A_YEAR = "max-age=31536000"
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?([a-z0-9.+-]{0,99})", re.ASCII)
_MAX_SHOWN_CHARS = 40
VERSION_PARAM = "dashboard"
CUSTOM = "custom"
"""Used as the version of a frontend whose files are directly in `--dashboard-dir`: its real version is unknown."""
NOT_INSTALLED = "No Ray Dashboard frontend is installed"
INSTALL_HINT = (
    "Download one with `rayhistory dashboards add 2.60.0`, install Ray beside the server with "
    "`pip install 'ray[default]'`, or set `--dashboard-dir`."
)

ADD_VERSION_HINT = "Install it on the server with `rayhistory dashboards add VERSION`."


class Frontend(msgspec.Struct, frozen=True):
    version: str
    path: Path
    from_ray: bool = False
    """True for the frontend of the Ray that is installed in this environment."""


class DashboardChoice(msgspec.Struct, frozen=True):
    """The frontend that a page shows, and the installed ones."""

    chosen: str | None
    versions: list[str]
    ray_version: str | None
    """The version of Ray in the session's cluster."""


class Frontends:
    """The frontends in a directory, and that of the installed Ray.

    The directory is listed at each request, so that a new frontend needs no restart.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def installed(self) -> list[Frontend]:
        """Return all frontends: the custom one first, then the others from the newest version to the oldest.

        If the directory and the installed Ray have the same version, the one in the directory is used.
        """
        frontends: dict[str, Frontend] = {}
        for frontend in (*_frontends_in(self.directory), *_frontends_of_ray()):
            frontends.setdefault(frontend.version, frontend)
        return sorted(frontends.values(), key=_rank, reverse=True)

    def choose(self, ray_version: str | None, requested: str | None = None) -> Frontend | None:
        """Return the requested frontend, else the one with the nearest version; None if none is installed."""
        installed = self.installed()
        if requested is None or not installed:
            return _nearest_version(installed, ray_version)
        for frontend in installed:
            if frontend.version == requested:
                return frontend
        versions = ", ".join(frontend.version for frontend in installed)
        raise UsageError(f"no frontend of Ray {requested[:_MAX_SHOWN_CHARS]!r} is installed; installed: {versions}")

    def describe_choice(self, ray_version: str | None, requested: str | None = None) -> DashboardChoice:
        chosen = self.choose(ray_version, requested)
        versions = [each.version for each in self.installed()]
        return DashboardChoice(chosen.version if chosen else None, versions, ray_version)

    def file_response(self, path: str) -> Response:
        """Serve a file of any frontend. Files below static/ never change."""
        file = next(filter(None, (_file_inside(frontend.path, path) for frontend in self.installed())), None)
        if file is None:
            return text_response("404: Not Found", 404)
        headers = {"Cache-Control": _CACHE_FOR_A_YEAR} if path.startswith("static/") else {}
        return FileResponse(file, media_type=mimetypes.guess_type(file.name)[0], headers=headers)


def is_frontend(path: Path) -> bool:
    return (path / "index.html").is_file()


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def index_page(frontend: Frontend, headers: dict[str, str], scripts: Sequence[str] = ()) -> Response:
    """Return the HTML document of a frontend. If there are `scripts`, insert them before the frontend's own scripts."""
    headers = {"Cache-Control": "no-store", **headers}
    path = frontend.path / "index.html"
    if not scripts:
        return FileResponse(path, headers=headers)
    before, head, after = path.read_text(encoding="utf-8").partition("<head>")
    ours = "".join(f'<script src="{script}"></script>' for script in scripts)
    return HTMLResponse(f"{before}{head}{ours}{after}", headers=headers)


def _frontends_in(directory: Path) -> Iterator[Frontend]:
    if is_frontend(directory):
        yield Frontend(CUSTOM, directory)
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if is_version(name) and is_frontend(directory / name):
            yield Frontend(name, directory / name)


@cache
def _frontends_of_ray() -> list[Frontend]:
    spec = importlib.util.find_spec("ray")
    directories = [
        Path(directory) / "dashboard/client/build" for directory in (spec and spec.submodule_search_locations) or ()
    ]
    return [
        Frontend(importlib.metadata.version("ray"), path, from_ray=True) for path in directories if is_frontend(path)
    ]


def _nearest_version(installed: Sequence[Frontend], ray_version: str | None) -> Frontend | None:
    """Return the same version, else the nearest minor release, then the nearest patch.

    If two are equally near, the newer.
    """
    if not installed or installed[0].version == CUSTOM or not ray_version or not is_version(ray_version):
        return installed[0] if installed else None
    requested = _numbers(ray_version)

    def distance(frontend: Frontend) -> tuple[bool, list[int]]:
        distances = [abs(one - other) for one, other in zip(_numbers(frontend.version), requested, strict=True)]
        return frontend.version != ray_version, distances

    return min(installed, key=distance)


def _rank(frontend: Frontend) -> tuple[bool, tuple[int, int, int], str]:
    return frontend.version == CUSTOM, _numbers(frontend.version), frontend.version


def _numbers(version: str) -> tuple[int, int, int]:
    match = _VERSION.fullmatch(version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _file_inside(root: Path, path: str) -> Path | None:
    """Return the real path of a file if it lies inside of the root, else None."""
    if "\0" in path:
        return None
    base = os.path.realpath(root)
    full = os.path.realpath(os.path.join(base, path))  # noqa: PTH118
    if os.path.commonpath([base, full]) != base or not os.path.isfile(full):  # noqa: PTH113 - no error for a long name
        return None
    return Path(full)
