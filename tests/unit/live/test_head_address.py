"""URLs that a collector's record may name as a head's dashboard."""

import pytest

from rayhistory.live.head_address import is_allowed_head_url


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8265", "https://head.example", "http://[fd00::1]:8265", "http://head"]
)
def test_plain_origins_are_allowed(url: str) -> None:
    assert is_allowed_head_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254", "http://2852039166", "http://[::ffff:169.254.169.254]", "http://0", "http://224.0.0.1",
     "http://user@head", "http://head/path", "http://head?x=1", "ftp://head", "http://", "http://head:99999"],
)  # fmt: skip
def test_metadata_services_and_other_urls_are_refused(url: str) -> None:
    assert not is_allowed_head_url(url)
