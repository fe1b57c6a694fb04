"""Series are chosen by the hash that Prometheus uses."""

import pytest

from rayhistory.promql.ratio_sample import xxhash64


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_hash_has_published_values(data: bytes, expected: int) -> None:
    assert xxhash64(data) == expected
