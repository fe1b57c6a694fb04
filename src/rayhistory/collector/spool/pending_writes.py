"""Group commit: requests that wait for the disk share one write and one fdatasync.

A group grows only if the disk is slow, so that no request waits long for the compression of others.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rayhistory.collector.spool.block import Block

Blocks = Mapping[str, Sequence[Block]]
"""Blocks by session."""

_MIN_GROUP_BYTES = 1 << 20
_GROUP_BYTES_PER_SYNC_SECOND = 128 << 20  # the slower the disk, the larger the groups


class PendingWrite(NamedTuple):
    blocks: Blocks
    size: int
    done: asyncio.Future[None]


class PendingWrites:
    def __init__(self, max_group_bytes: int) -> None:
        self.bytes = 0
        """Bytes of all unfinished writes, including the group that is being written."""
        self.sync_seconds = 0.0
        """Duration of the last sync to disk."""
        self._max_group_bytes = max_group_bytes
        self._writes: list[PendingWrite] = []

    def add(self, blocks: Blocks, size: int) -> asyncio.Future[None]:
        """Add blocks to write. The future completes when they are synced."""
        done = asyncio.get_running_loop().create_future()
        self._writes.append(PendingWrite(blocks, size, done))
        self.bytes += size
        return done

    def next_group(self) -> list[PendingWrite]:
        """Take the writes that are committed together next. Return at least one if any is pending."""
        free = int(self.sync_seconds * _GROUP_BYTES_PER_SYNC_SECOND)
        free = min(max(_MIN_GROUP_BYTES, free), self._max_group_bytes)
        count = 0
        for write in self._writes:
            free -= write.size
            if count and free < 0:
                break
            count += 1
        group, self._writes = self._writes[:count], self._writes[count:]
        return group

    def finish(self, group: list[PendingWrite], failure: Exception | None) -> None:
        """Complete the futures of all writes in this group, with success or an error."""
        for write in group:
            self.bytes -= write.size
            if write.done.done():
                continue
            if failure:
                write.done.set_exception(failure)
            else:
                write.done.set_result(None)
