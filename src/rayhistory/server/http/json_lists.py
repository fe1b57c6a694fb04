"""JSON lists that are encoded in batches, so that long lists need little memory and do not block other requests.

Clients may read slowly, and then a generator waits at its `yield`. So generators here keep no reference to the chunk
that they have yielded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

from rayhistory.index.query.query import Row

RowEncoder = Callable[[list[Row]], bytes]
"""Encodes rows as items of a JSON array or members of a JSON object, without the brackets."""


async def encoded_items(batches: AsyncIterator[list[Row]], encode: RowEncoder) -> AsyncIterator[bytes]:
    """Yield the items of a JSON list. They are encoded in a thread, because a batch takes tens of milliseconds."""
    separator = b""
    async for rows in batches:
        items = [separator + await asyncio.to_thread(encode, rows)]
        rows.clear()  # the client may read slowly
        if items[0] != separator:
            yield items.pop()
            separator = b","


async def concatenated(*parts: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            async for chunk in part:
                pending = [chunk]
                del chunk
                yield pending.pop()


def rest_chunks(message: str, *data: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Wrap encoded members of a JSON object in the envelope of Ray's dashboard."""
    return concatenated(b'{"result":true,"msg":' + msgspec.json.encode(message) + b',"data":', *data, b"}")


def json_array(items: Iterable[bytes]) -> bytes:
    """Join encoded items to a JSON array."""
    return b"[" + b",".join(items) + b"]"


def json_items(rows: list[Any]) -> bytes:
    """Encode a JSON array without its brackets."""
    return msgspec.json.encode(rows)[1:-1]


def json_members(members: dict[str, Any]) -> bytes:
    """Encode a JSON object without its brackets."""
    return msgspec.json.encode(members)[1:-1]
