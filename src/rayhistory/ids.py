"""Ids of Ray in one spelling.

Ray posts ids as base64 of their bytes; its API, its file names and older collectors use lower-case hex.
The length of an id is fixed by its kind, so the spelling can be told from the number of characters.
"""

import binascii
import re
from collections.abc import Sequence
from functools import lru_cache

JOB, ACTOR, TASK, PLACEMENT_GROUP, NODE, WORKER = 4, 16, 24, 18, 28, 28

_HEX = re.compile(r"[0-9a-fA-F]+\Z")
_TASK_BASE64 = TASK * 4 // 3
_NIL_TASK = "f" * 2 * TASK


class _Known(dict[object, str | None]):
    """What was found for each spelling: the same few nodes, workers and jobs are named millions of times."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __missing__(self, value: object) -> str | None:
        if len(self) > 20_000:
            self.clear()
        self[value] = text = _to_hex(value, self._size)
        return text


_known = {size: _Known(size) for size in (JOB, ACTOR, TASK, PLACEMENT_GROUP, NODE)}


def to_hex(value: object, size: int) -> str | None:
    """The id as lower-case hex; None when it is empty, nil (all ff) or not an id of this size."""
    return _known[size][value]


def hexes(values: Sequence[object], size: int) -> list[str | None]:
    """The same for many."""
    known = _many_tasks(values) if size == TASK else None
    return known or list(map(_known[size].__getitem__, values))


def _many_tasks(values: Sequence[object]) -> list[str | None] | None:
    """Ids of tasks are seldom seen twice, and have no padding: they are decoded as one; None where one is odd."""
    try:
        if set(map(len, values)) != {_TASK_BASE64}:  # type: ignore[arg-type]
            return None
        raw = binascii.a2b_base64("".join(values))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if len(raw) != TASK * len(values):  # characters that mean nothing are passed over
        return None
    text, step = raw.hex(), 2 * TASK
    found: list[str | None] = [text[start : start + step] for start in range(0, len(text), step)]
    return None if _NIL_TASK in found else found


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


@lru_cache(maxsize=20_000)
def any_to_hex(value: str) -> str:
    """An id of unknown kind as hex; what is neither hex nor base64 stays as it is."""
    if not value or _HEX.match(value):
        return value.lower()
    try:
        return binascii.a2b_base64(value).hex()
    except (ValueError, binascii.Error):
        return value


def actor_of_task(task_id: str) -> str | None:
    """The actor inside a task id: its last 16 bytes, unless they name no actor."""
    tail = task_id[-2 * ACTOR :]
    return None if len(task_id) != 2 * TASK or tail.startswith("f" * 24) else tail


def is_driver_task(task_id: str) -> bool:
    return task_id.startswith("f" * 40)
