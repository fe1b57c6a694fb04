"""Search within the file in the log viewer: the next or previous matching line, and marks on the page."""

from typing import NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request

from rayhistory.errors import UsageError
from rayhistory.logs.source import StoredLogFile
from rayhistory.search.find_in_file import FileSearch, FileSearchResult
from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scanner import Scanner
from rayhistory.server.http.admission import caller_of
from rayhistory.server.search_api.start_search import search_file
from rayhistory.server.view import SessionView
from rayhistory.web import FindForm
from rayhistory.web.ansi import StyledText
from rayhistory.web.log_models import BACK_PARAMETERS

_TIME_BUDGET_S = 5.0
_MAX_MARKS = 100
_MAX_OFFSET = 10**15
_SEARCH = ("q", "regex", "case", "word")


class LogFind(NamedTuple):
    """The search of a request and its result. `pattern` is None without a search."""

    pattern: SearchPattern | None = None
    offset: int | None = None
    """Offset of the found line."""
    message: str = ""
    next_from: int | None = None
    """Offset at which the search for the next match begins; None for the selected line, or the next if it matches."""
    previous_before: int | None = None

    def marked(self, pieces: list[StyledText]) -> list[StyledText]:
        """Split the pieces of a line at the matches, which get the style `match`."""
        return _marked(pieces, self.pattern) if self.pattern else pieces


async def find_in_log(
    request: Request, view: SessionView, node: str, file: StoredLogFile, params: QueryParams
) -> LogFind:
    """Search forwards from the offset `from`, or backwards from the offset `before`; do nothing if neither is given."""
    if not params.get("q"):
        return LogFind()
    scanner: Scanner = request.app.state.scanner
    pattern = await scanner.patterns.compile(params["q"], caller_of(request), **_flags(params))
    backwards = "before" in params
    if not backwards and "from" not in params:
        return LogFind(pattern)
    position = _offset(params, "before" if backwards else "from")
    search = FileSearch(pattern, min(position, file.size), backwards)
    result = await search_file(request, view, (node, file.path), search, _TIME_BUDGET_S)
    if result.offset is not None and result.offset < file.size:
        return LogFind(pattern, result.offset)
    return _nothing(pattern, result, search)


def find_form(find: LogFind, params: QueryParams, base: str, position: int, everywhere: str) -> FindForm:
    """Return the form and the links to the next and the previous match; `position` is the selected line's offset."""
    if find.pattern is None:
        return FindForm(position=position, everywhere=everywhere)
    kept = {name: params[name] for name in (*_SEARCH, "wrap", *BACK_PARAMETERS) if params.get(name)}

    def link(**place: int) -> str:
        return f"{base}?{urlencode({**kept, **place})}"

    next_from = position if find.offset is None else position + 1
    return FindForm(
        q=params["q"], **_flags(params), position=position, message=find.message,
        next=link(**{"from": next_from if find.next_from is None else find.next_from}),
        previous=link(before=position if find.previous_before is None else find.previous_before),
        everywhere=f"{everywhere}?{urlencode({name: kept[name] for name in _SEARCH if name in kept})}",
    )  # fmt: skip


def _flags(params: QueryParams) -> dict[str, bool]:
    return {name: params.get(name) == "1" for name in ("regex", "case", "word")}


def _offset(params: QueryParams, name: str) -> int:
    text = params[name]
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _MAX_OFFSET):
        raise UsageError(f"invalid {name} {text[:40]!r}: use an offset in bytes")
    return int(text)


def _nothing(pattern: SearchPattern, result: FileSearchResult, search: FileSearch) -> LogFind:
    if result.stopped_at is not None:
        button = "Previous match" if search.backwards else "Next match"
        message = f"The search stopped at byte {result.stopped_at:,} without a match. {button} continues there."
        name = "previous_before" if search.backwards else "next_from"
        return LogFind(pattern, message=message, **{name: result.stopped_at})
    if search.backwards:
        return LogFind(pattern, message="No line before this one matches.")
    if search.position:
        return LogFind(pattern, message="No line from here on matches. Next match: from the start.", next_from=0)
    return LogFind(pattern, message="No line of this file matches.")


def _marked(pieces: list[StyledText], pattern: SearchPattern) -> list[StyledText]:
    line = "".join(piece.text for piece in pieces).encode(errors="replace")
    spans = [
        (len(line[:begin].decode(errors="replace")), len(line[:end].decode(errors="replace")))
        for begin, end in pattern.spans(line, _MAX_MARKS)
    ]
    marked, position = list[StyledText](), 0
    for text, style in pieces:
        marked += _split(text, style, [(begin - position, end - position) for begin, end in spans])
        position += len(text)
    return marked


def _split(text: str, style: str, spans: list[tuple[int, int]]) -> list[StyledText]:
    parts, position = list[StyledText](), 0
    for first, last in spans:
        begin, end = max(first, position), min(last, len(text))
        if begin < end:
            parts += [StyledText(text[position:begin], style), StyledText(text[begin:end], f"{style} match".strip())]
            position = end
    return [part for part in (*parts, StyledText(text[position:], style)) if part.text]
