"""The parameters of a search, and the cursor that continues one."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rayhistory.errors import UsageError
from rayhistory.search.pattern import PatternCompiler, SearchPattern
from rayhistory.utc import parse_utc_ms

T = TypeVar("T")

NEWEST, OLDEST = "newest", "oldest"
MAX_LIMIT, DEFAULT_LIMIT, MAX_CONTEXT = 1000, 100, 20
STREAMS = {"out": "out", "stdout": "out", "err": "err", "stderr": "err", "log": "log"}
"""Names of streams, and the suffixes of their files."""
PARAMETERS = (
    "q", "regex", "case", "word", "node", "file", "stream", "job", "task", "actor", "from", "to", "order", "context",
    "limit", "cursor", "counts",
)  # fmt: skip
_MAX_NUMBER = re.compile("[0-9]{1,9}")
_SUFFIX = re.compile(r"\.(out|err|log)(?:\.[0-9]{1,6})?\Z")


class SortKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The position of a hit in the results. Lower keys come first."""

    rank: int
    """The time of the hit in ms, negated if the newest hits come first."""
    node: str
    path: str
    place: int
    """The offset in the file, negated if the newest hits come first."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position at which a search continues: the time of its file list, the batch, and the last hit."""

    until_ms: int
    digest: int
    unit: int
    """Number of the batch's first unit."""
    size: int
    """Size of the batch, in full units."""
    after: SortKey | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    q: str
    regex: bool = False
    case: bool = False
    word: bool = False
    node: str | None = None
    file: str | None = None
    stream: str | None = None
    job: str | None = None
    task: str | None = None
    actor: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    order: str = NEWEST
    context: int = 0
    limit: int = DEFAULT_LIMIT
    cursor: Cursor | None = None
    counts: bool = False
    """True to search on when the page is full, to count all hits."""

    def pattern(self) -> SearchPattern:
        return SearchPattern(self.q, regex=self.regex, case=self.case, word=self.word)

    async def compile(self, compiler: PatternCompiler, visitor: str) -> SearchPattern:
        return await compiler.compile(self.q, visitor, regex=self.regex, case=self.case, word=self.word)

    @property
    def newest_first(self) -> bool:
        return self.order == NEWEST


def parse_search(params: Mapping[str, str], also: tuple[str, ...] = ()) -> SearchQuery:
    """Parse the parameters of a URL, except those in `also`. Raise UsageError for unknown or invalid ones."""
    allowed = {*PARAMETERS, *also}
    if unknown := sorted(set(params) - allowed):
        raise UsageError(f"unknown parameters {', '.join(unknown)}: use {', '.join(PARAMETERS)}")
    if "q" not in params:
        raise UsageError("parameter q is missing: set it to the text to search for")
    start, end = (_parse_time(params, name) for name in ("from", "to"))
    return SearchQuery(
        q=params["q"],
        regex=_parse_flag(params, "regex"),
        case=_parse_flag(params, "case"),
        word=_parse_flag(params, "word"),
        node=params.get("node") or None,
        file=params.get("file") or None,
        stream=STREAMS[_one_of(params, "stream", tuple(STREAMS))] if params.get("stream") else None,
        job=params.get("job") or None,
        task=params.get("task") or None,
        actor=params.get("actor") or None,
        from_ms=start,
        to_ms=end,
        order=_one_of(params, "order", (NEWEST, OLDEST)) if params.get("order") else NEWEST,
        context=_parse_number(params, "context", 0, 0, MAX_CONTEXT),
        limit=_parse_number(params, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
        cursor=decode_cursor(params["cursor"], Cursor) if params.get("cursor") else None,
        counts=_parse_flag(params, "counts"),
    )


def stream_of(path: str) -> str | None:
    """Return `out`, `err` or `log`; None if the name has no stream. Rotated files have the same stream."""
    match = _SUFFIX.search(path)
    return match[1] if match else None


def encode_cursor(cursor: msgspec.Struct) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode().rstrip("=")


def decode_cursor(text: str, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise UsageError("invalid cursor: use `next` of the previous page") from None


def _parse_flag(params: Mapping[str, str], name: str) -> bool:
    return bool(params.get(name)) and _one_of(params, name, ("0", "1")) == "1"


def _one_of(params: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    if params[name] not in choices:
        raise UsageError(f"invalid {name} {params[name]!r}: use {' or '.join(choices)}")
    return params[name]


def _parse_number(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = params.get(name) or str(default)
    if not _MAX_NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise UsageError(f"invalid {name} {text!r}: use a number from {low} to {high}")
    return int(text)


def _parse_time(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name)
    if not text:
        return None
    try:
        return parse_utc_ms(text)
    except ValueError:
        raise UsageError(f"invalid {name} {text!r}: use milliseconds since 1970, or ISO 8601 in UTC") from None
