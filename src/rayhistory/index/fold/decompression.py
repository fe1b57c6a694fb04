"""Streaming decompression of gzip and zstd, in pieces of bounded size."""

from collections.abc import Iterator
from typing import Any

import zstandard
from isal import isal_zlib

MAX_TEXT_BYTES = 1 << 20
"""Maximum size of the pieces of text. Only zstd may return larger ones (see ZstdDecompressor)."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class GzipDecompressor:
    """Decompresses any number of gzip members. Text before damage is returned, text after it is lost."""

    name = "gzip"
    damage: type[Exception] = isal_zlib.error  # type: ignore[assignment]
    input_bytes = 16 << 10

    def __init__(self) -> None:
        self._stream = self._new_stream()
        self.broken = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the text of the data, in pieces."""
        for start in range(0, len(data), self.input_bytes):
            rest, text = data[start : start + self.input_bytes], b""
            while (rest or (len(text) == MAX_TEXT_BYTES and not self._stream.eof)) and not self.broken:
                if self._stream.eof:
                    self._stream = self._new_stream()
                try:
                    text, rest = self._decompress(rest)
                except self.damage:
                    self.broken = True
                else:
                    yield text

    def _new_stream(self) -> Any:
        return isal_zlib.decompressobj(wbits=31)

    def _decompress(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a piece of text, and the remaining data."""
        text = self._stream.decompress(data, MAX_TEXT_BYTES)
        return text, self._stream.unconsumed_tail or self._stream.unused_data

    @property
    def truncated(self) -> bool:
        return self.broken or not self._stream.eof


class ZstdDecompressor(GzipDecompressor):
    """Decompresses any number of zstd frames."""

    name = "zstd"
    damage = zstandard.ZstdError
    input_bytes = 256  # zstd returns all text of its input: four bytes can be 128 KiB, so this is at most 8 MiB

    def _new_stream(self) -> Any:
        return zstandard.ZstdDecompressor().decompressobj()

    def _decompress(self, data: bytes) -> tuple[bytes, bytes]:
        return self._stream.decompress(data), self._stream.unused_data


def decompressor_for(head: bytes) -> GzipDecompressor | None:
    """Return a decompressor for data that begins with `head`; None if it is not compressed."""
    if head.startswith(_GZIP_MAGIC):
        return GzipDecompressor()
    return ZstdDecompressor() if head.startswith(_ZSTD_MAGIC) else None
