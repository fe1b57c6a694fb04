"""Ray's own dashboard frontends, unmodified: which versions there are, which one a session gets, and their files.

A page's files are found by their names alone, in whichever frontend has them: the names carry a digest of the content.
So a page keeps to the version that its document was of, without a cookie, and two tabs may have two.
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
from starlette.responses import FileResponse, Response

from rayhistory.errors import UsageError
from rayhistory.server.answers import text_answer

_YEAR = "max-age=31536000"
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?([a-z0-9.+-]{0,99})", re.ASCII)
_NAMED = 40
PARAMETER = "dashboard"
GIVEN = "given"
"""What stands for a version where a directory is itself a frontend, of nobody knows which."""
ABSENT = "No Ray Dashboard frontend is installed"
ADVICE = (
    "Get one with `rayhistory dashboards add 2.60.0`, install Ray with `pip install 'ray[default]'` beside the server, "
    "or name a directory with `--dashboard-dir`."
)

MORE = "Another is added with `rayhistory dashboards add VERSION` where the server runs."


class Frontend(msgspec.Struct, frozen=True):
    version: str
    path: Path
    from_ray: bool = False
    """It belongs to the Ray of this environment, and not to us."""


class DashboardChoice(msgspec.Struct, frozen=True):
    """What a page can say of the frontend that it shows, and of the others."""

    chosen: str | None
    versions: list[str]
    ray_version: str | None
    """Of the session."""


class Frontends:
    """Those in a directory, looked up each time: one that is added while the server runs is there."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def installed(self) -> list[Frontend]:
        """A frontend that was given for all sessions first, then the newest first. Of one version, ours counts."""
        found: dict[str, Frontend] = {}
        for frontend in (*_below(self.directory), *_of_ray()):
            found.setdefault(frontend.version, frontend)
        return sorted(found.values(), key=_rank, reverse=True)

    def choose(self, ray_version: str | None, wanted: str | None = None) -> Frontend | None:
        """The wanted one, else what suits a session of this version of Ray; None when there is none at all."""
        installed = self.installed()
        if wanted is None or not installed:
            return _suiting(installed, ray_version)
        for frontend in installed:
            if frontend.version == wanted:
                return frontend
        there = ", ".join(frontend.version for frontend in installed)
        raise UsageError(f"no dashboard {wanted[:_NAMED]!r} is installed here; there is {there}")

    def choice(self, ray_version: str | None, wanted: str | None = None) -> DashboardChoice:
        chosen = self.choose(ray_version, wanted)
        versions = [each.version for each in self.installed()]
        return DashboardChoice(chosen.version if chosen else None, versions, ray_version)

    def file_answer(self, path: str) -> Response:
        """A file of any frontend; what is below static/ never changes."""
        found = next(filter(None, (_inside(frontend.path, path) for frontend in self.installed())), None)
        if found is None:
            return text_answer("404: Not Found", 404)
        headers = {"Cache-Control": _YEAR} if path.startswith("static/") else {}
        return FileResponse(found, media_type=mimetypes.guess_type(found.name)[0], headers=headers)


def is_frontend(path: Path) -> bool:
    return (path / "index.html").is_file()


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def index_page(frontend: Frontend, headers: dict[str, str]) -> Response:
    return FileResponse(frontend.path / "index.html", headers={"Cache-Control": "no-store", **headers})


def _below(directory: Path) -> Iterator[Frontend]:
    if is_frontend(directory):
        yield Frontend(GIVEN, directory)
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if is_version(name) and is_frontend(directory / name):
            yield Frontend(name, directory / name)


@cache
def _of_ray() -> list[Frontend]:
    spec = importlib.util.find_spec("ray")
    places = [Path(place) / "dashboard/client/build" for place in (spec and spec.submodule_search_locations) or ()]
    return [Frontend(importlib.metadata.version("ray"), path, from_ray=True) for path in places if is_frontend(path)]


def _suiting(installed: Sequence[Frontend], ray_version: str | None) -> Frontend | None:
    """The same version, else the nearest: by minor releases, then by patches; of two that are as far, the newer."""
    if not installed or installed[0].version == GIVEN or not ray_version or not is_version(ray_version):
        return installed[0] if installed else None
    wanted = _numbers(ray_version)

    def distance(frontend: Frontend) -> tuple[bool, list[int]]:
        apart = [abs(one - other) for one, other in zip(_numbers(frontend.version), wanted, strict=True)]
        return frontend.version != ray_version, apart

    return min(installed, key=distance)


def _rank(frontend: Frontend) -> tuple[bool, tuple[int, int, int], str]:
    return frontend.version == GIVEN, _numbers(frontend.version), frontend.version


def _numbers(version: str) -> tuple[int, int, int]:
    found = _VERSION.fullmatch(version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _inside(root: Path, path: str) -> Path | None:
    """The real path of a file, if it is one and lies inside."""
    if "\0" in path:
        return None
    base = os.path.realpath(root)
    full = os.path.realpath(os.path.join(base, path))  # noqa: PTH118
    if os.path.commonpath([base, full]) != base or not os.path.isfile(full):  # noqa: PTH113 - no error for a long name
        return None
    return Path(full)
