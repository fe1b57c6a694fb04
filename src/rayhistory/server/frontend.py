"""Ray's own dashboard frontend, unmodified: found in a directory or in an installed Ray, and served as files."""

import importlib.util
import mimetypes
import os
from functools import lru_cache
from pathlib import Path

from starlette.responses import FileResponse, Response

from rayhistory.server.answers import text_answer

_YEAR = "max-age=31536000"
ABSENT = "No Ray Dashboard frontend is installed"
ADVICE = "Install one with `pip install 'ray[default]'` beside the server, or name a directory with `--dashboard-dir`."


@lru_cache(maxsize=8)
def find_frontend(directory: str) -> Path | None:
    """The given directory if it holds a frontend, else that of the Ray in this environment."""
    candidates = [Path(directory)]
    spec = importlib.util.find_spec("ray")
    if spec and spec.submodule_search_locations:
        candidates += [Path(place) / "dashboard/client/build" for place in spec.submodule_search_locations]
    return next((path for path in candidates if (path / "index.html").is_file()), None)


def index_page(frontend: Path) -> Response:
    return FileResponse(frontend / "index.html", headers={"Cache-Control": "no-store"})


def file_answer(frontend: Path | None, path: str) -> Response:
    """A file of the frontend; names are hashed, so what is below /static/ never changes."""
    found = _inside(frontend, path) if frontend else None
    if found is None:
        return text_answer("404: Not Found", 404)
    headers = {"Cache-Control": _YEAR} if path.startswith("static/") else {}
    return FileResponse(found, media_type=mimetypes.guess_type(found.name)[0], headers=headers)


def _inside(root: Path, path: str) -> Path | None:
    """The real path of a file, if it is one and lies inside."""
    if "\0" in path:
        return None
    base = os.path.realpath(root)
    full = os.path.realpath(os.path.join(base, path))  # noqa: PTH118
    if os.path.commonpath([base, full]) != base or not Path(full).is_file():
        return None
    return Path(full)
