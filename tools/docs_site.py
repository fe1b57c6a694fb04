"""A hook of MkDocs: replace links to files outside `docs/` by the paths of these files.

The site is built from `docs/` alone, but guides name manifests and sources, and readers of the repository follow those
links. A link whose target does not exist fails the build.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace links that leave `docs/`."""
    directory = Path(page.file.abs_src_path).parent
    return LINK.sub(lambda found: replaced(found, directory, Path(config["docs_dir"])), markdown)


def replaced(link: re.Match[str], directory: Path, docs: Path) -> str:
    """Return the link itself, or its text with the path of its target in the repository."""
    target = (directory / link[2]).resolve()
    if target.is_relative_to(docs):
        return link[0]
    if not target.exists() or not target.is_relative_to(ROOT):
        raise PluginError(f"{directory}: link to a file that does not exist: {link[2]}")
    path = target.relative_to(ROOT).as_posix()
    return f"`{path}`" if Path(link[1]).name in path else f"{link[1]} (`{path}`)"
