"""Values of the pages that search and show log files."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from rayhistory.web.ansi import StyledText, blank_codes


class SearchForm(msgspec.Struct, frozen=True):
    """The values of the search form."""

    q: str = ""
    regex: bool = False
    case: bool = False
    word: bool = False
    file: str = ""
    node: str = ""
    since: str = ""
    order: str = "newest"
    stream: str = ""
    job: str = ""
    task: str = ""
    actor: str = ""
    start: str = ""
    end: str = ""
    hidden: list[tuple[str, str]] = []
    """Other parameters that a new search preserves."""


class HistogramBar(msgspec.Struct, frozen=True):
    """One bar of the histogram, in units of its SVG, which is 1,200 wide and 60 high."""

    x: float
    width: float
    height: float
    label: str
    url: str
    """URL of the same search within this time step."""


def found_by(url: str, search: str) -> str:
    """Return the URL of a line in the log viewer, with the search that found it (see `BACK_PARAMETERS`)."""
    viewer, mark, anchor = url.partition("#")
    return f"{viewer}{'&' if '?' in viewer else '?'}{search}{mark}{anchor}"


BACK_PARAMETERS = ("search", "search_all")
"""Parameters of the log viewer: the query of the search, in the session or in all sessions, that led there."""


class ShownHit(Protocol):
    """A matching line on the page."""

    @property
    def text(self) -> str: ...

    @property
    def matches(self) -> Sequence[tuple[int, int]]: ...


class SearchResult(Protocol):
    @property
    def hits(self) -> Sequence[ShownHit]: ...

    @property
    def complete(self) -> bool: ...

    @property
    def scanned_bytes(self) -> int: ...

    @property
    def total(self) -> int | None: ...


class LogRow(msgspec.Struct, frozen=True):
    anchor: str
    label: str
    url: str
    pieces: list[StyledText]
    cut: bool
    selected: bool
    owner: str
    """The task or actor that wrote the line, or an empty text."""


class LogLinks(msgspec.Struct, frozen=True):
    start: str
    end: str
    wrap: str
    download: str
    previous: str | None
    next: str | None
    follow: str | None
    back: str | None
    """URL of the search that led to the page."""
    kept: list[tuple[str, str]] = []
    """Parameters that forms of the page preserve."""


class FindForm(msgspec.Struct, frozen=True):
    """The form of a search within a file."""

    q: str = ""
    regex: bool = False
    case: bool = False
    word: bool = False
    position: int = 0
    """Start of a new search: the selected line."""
    previous: str | None = None
    next: str | None = None
    everywhere: str = ""
    """URL of the same search in all files."""
    message: str = ""


class WindowBounds(Protocol):
    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def lines(self) -> Sequence[object]: ...


class LogPage(msgspec.Struct, frozen=True):
    """A window of a log file on the page."""

    node: str
    path: str
    window: WindowBounds
    rows: list[LogRow]
    links: LogLinks
    find: FindForm
    wrap: bool
    follow: bool
    error: str | None = None


def marked_texts(hit: ShownHit) -> list[StyledText]:
    """Split the text of a hit at its matches, and remove control codes. A match may contain some."""
    text, pieces, position = blank_codes(hit.text), [], 0
    for start, end in hit.matches:
        pieces += [StyledText(text[position:start], ""), StyledText(text[start:end], "match")]
        position = end
    pieces.append(StyledText(text[position:], ""))
    return [StyledText(shown, style) for piece, style in pieces if (shown := piece.replace("\0", ""))]
