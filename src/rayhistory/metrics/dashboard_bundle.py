"""The Grafana dashboards of a session in one object, as its head wrote them.

    ray-history/metrics/<ns>/<cluster>/<session>/dashboards.json.zst

is a zstd frame of a JSON object: file names, and the dashboards in them. Reader and writer treat the content as
untrusted.
"""

from typing import Any

import msgspec
import zstandard

from rayhistory.metrics.samples import MetricsDamaged

MAX_DASHBOARDS = 32
MAX_BUNDLE_BYTES = 16 * 2**20
_MAX_VALUES = 500_000
"""Maximum number of values in a bundle. Each needs up to 200 bytes. Ray's own Grafana dashboards have 30,000 in all."""
_ZSTD_LEVEL = 9


def encode_bundle(files: dict[str, bytes]) -> bytes:
    """Encode files of Grafana dashboards. Files that are not JSON objects are left out."""
    valid = {name: msgspec.Raw(body) for name, body in sorted(files.items()) if _is_object(body)}
    packed = msgspec.json.encode(valid)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress(packed)


def decode_bundle(data: bytes) -> list[dict[str, Any]]:
    """Return the Grafana dashboards in a bundle; raise MetricsDamaged if it cannot be read."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_BUNDLE_BYTES:
            raise MetricsDamaged(
                f"stored Grafana dashboards have an unknown size, or are larger than {MAX_BUNDLE_BYTES} bytes"
            )
        body = zstandard.ZstdDecompressor().decompress(data)
        if sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise MetricsDamaged(f"stored Grafana dashboards have more than {_MAX_VALUES} values")
        files = msgspec.json.decode(body, type=dict[str, Any])
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MetricsDamaged(f"stored Grafana dashboards are damaged: {error}") from None
    return [each for each in files.values() if isinstance(each, dict)][:MAX_DASHBOARDS]


def _is_object(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
