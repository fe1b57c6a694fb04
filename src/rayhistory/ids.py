"""Convert Ray's ids to lower-case hex.

Ray sends ids as base64. Its API, its file names and older collectors use lower-case hex. Every kind of id has a fixed
size, so the number of characters determines the encoding.
"""

import binascii
import re
from collections.abc import Sequence
from functools import lru_cache

JOB, ACTOR, TASK, PLACEMENT_GROUP, NODE, WORKER = 4, 16, 24, 18, 28, 28

_MAX_CACHED_IDS = 20_000
_HEX = re.compile(r"[0-9a-fA-F]+\Z")
_TASK_BASE64_LENGTH = TASK * 4 // 3
_NIL_TASK = "f" * 2 * TASK
NIL_TASKS = {_NIL_TASK, "/" * _TASK_BASE64_LENGTH}
"""The id that stands for no task, in hex and in base64."""


class _HexCache(dict[object, str | None]):
    """Cached conversions, because events repeat the same few node, worker and job ids millions of times."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __missing__(self, value: object) -> str | None:
        if len(self) > _MAX_CACHED_IDS:
            self.clear()
        self[value] = text = _to_hex(value, self._size)
        return text


_caches = {size: _HexCache(size) for size in (JOB, ACTOR, TASK, PLACEMENT_GROUP, NODE)}


def to_hex(value: object, size: int) -> str | None:
    """Convert an id; None if it is empty, nil (all ff) or not an id of this size."""
    return _caches[size][value]


def all_to_hex(values: Sequence[object], size: int) -> list[str | None]:
    """Convert each id as `to_hex` does."""
    if len(values) > 1 and values[0] == values[-1] and values.count(values[0]) == len(values):  # for example: the job
        return [to_hex(values[0], size)] * len(values)
    converted = _convert_task_ids(values) if size == TASK else None
    return converted or list(map(_caches[size].__getitem__, values))


def _convert_task_ids(values: Sequence[object]) -> list[str | None] | None:
    """Decode base64 task ids in one call, because they rarely repeat and have no padding.

    Return None if one of them is nil or not such an id.
    """
    try:
        if set(map(len, values)) != {_TASK_BASE64_LENGTH}:  # type: ignore[arg-type]
            return None
        raw = binascii.a2b_base64("".join(values))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if len(raw) != TASK * len(values):  # the decoder skips invalid characters
        return None
    text, step = raw.hex(), 2 * TASK
    converted: list[str | None] = [text[start : start + step] for start in range(0, len(text), step)]
    return None if _NIL_TASK in converted else converted


def _to_hex(value: object, size: int) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    if len(value) == 2 * size and _HEX.match(value):
        text = value.lower()
    else:
        try:
            raw = binascii.a2b_base64(value)
        except (ValueError, binascii.Error):
            return None
        if len(raw) != size:
            return None
        text = raw.hex()
    return None if text == "f" * (2 * size) else text


@lru_cache(maxsize=_MAX_CACHED_IDS)
def any_to_hex(value: str) -> str:
    """Convert an id of unknown kind. Values that are neither hex nor base64 are returned unchanged."""
    if not value or _HEX.match(value):
        return value.lower()
    try:
        return binascii.a2b_base64(value).hex()
    except (ValueError, binascii.Error):
        return value


def actor_of_task(task_id: str) -> str | None:
    """Return the actor id in the last 16 bytes of a task id; None if the task belongs to no actor."""
    tail = task_id[-2 * ACTOR :]
    return None if len(task_id) != 2 * TASK or tail.startswith("f" * 24) else tail
