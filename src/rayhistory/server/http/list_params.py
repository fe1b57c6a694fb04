"""Parameters of lists of sessions and runs. An invalid value is an error, because ignoring it would show wrong rows."""

import re

from starlette.datastructures import QueryParams

from rayhistory.errors import UsageError

_MAX_WORDS = 32
_MAX_PAGE = 10**9
_HOUR_MS = 3_600_000
_HOURS = {"h": 1, "d": 24}


def parse_words(params: QueryParams) -> str:
    """Return the words of a search."""
    text = params.get("q", "").strip()
    if len(text.split()) > _MAX_WORDS:
        raise UsageError(f"invalid q: use at most {_MAX_WORDS} words")
    return text


def parse_choice(params: QueryParams, name: str, choices: tuple[str, ...]) -> str | None:
    given = params.get(name) or None
    if given is not None and given not in choices:
        raise UsageError(f"invalid {name} {given!r}: use one of {', '.join(choices)}")
    return given


def parse_flag(params: QueryParams, name: str) -> bool:
    return parse_choice(params, name, ("0", "1")) == "1"


def parse_owner(params: QueryParams, kinds: tuple[str, ...]) -> str | None:
    """Return the owner to filter by: a kind, or a kind and a name (`rayjob/nightly`)."""
    owner = params.get("owner", "").strip().lower() or None
    if owner and owner.partition("/")[0] not in kinds:
        raise UsageError(f"invalid owner {owner!r}: use {', '.join(kinds)}, or a kind and a name (rayjob/nightly)")
    return owner


def parse_since(params: QueryParams) -> str | None:
    since = params.get("since") or None
    if since and age_ms(since) is None:
        raise UsageError(f"invalid since {since!r}: use a number of hours or days (24h, 7d)")
    return since


def age_ms(text: str) -> int | None:
    """Convert an age such as `24h` or `7d` to milliseconds. Return None for any other text."""
    match = re.fullmatch("([0-9]{1,5})([hd])", text)
    return int(match[1]) * _HOURS[match[2]] * _HOUR_MS if match else None


def parse_page(params: QueryParams) -> int:
    """Return the page number, starting at 1. A page after the last one is empty."""
    text = params.get("page") or "1"
    if not re.fullmatch("[0-9]+", text) or int(text[:20]) == 0:
        raise UsageError(f"invalid page {text[:20]!r}: use a number from 1")
    return min(int(text[:20]), _MAX_PAGE)
