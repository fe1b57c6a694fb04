"""Addresses that a collector's record may name as a head's dashboard."""

import asyncio

import pytest

from rayhistory.live.head_address import HeadAddress, resolve_registered_head
from rayhistory.networks import Networks

EVERYWHERE = Networks(("0.0.0.0/0", "::/0"), "--live-networks")
LOOPBACK = Networks(("127.0.0.0/8", "::1"), "--live-networks")


def resolve(url: str, networks: Networks = EVERYWHERE) -> HeadAddress | None:
    return asyncio.run(resolve_registered_head(url, networks))


@pytest.mark.parametrize(
    ("url", "connect_url"),
    [
        ("http://10.0.0.1:8265", "http://10.0.0.1:8265"),
        ("https://10.0.0.1", "https://10.0.0.1:443"),
        ("http://[fd00::1]:8265", "http://[fd00::1]:8265"),
        ("http://[::ffff:10.0.0.1]", "http://10.0.0.1:80"),
        ("http://2130706433:8265", "http://127.0.0.1:8265"),
    ],
)
def test_plain_origins_are_resolved_to_the_address_to_connect_to(url: str, connect_url: str) -> None:
    address = resolve(url)
    assert address
    assert (address.url, address.connect_url) == (url, connect_url)


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254", "http://2852039166", "http://0xa9fea9fe", "http://[::ffff:169.254.169.254]",
     "http://[fe80::1]:80", "http://0", "http://224.0.0.1", "http://user@127.0.0.1", "http://@127.0.0.1",
     "http://127.0.0.1/path", "http://127.0.0.1?x=1", "http://127.0.0.1#x", "ftp://127.0.0.1", "http://", "//127.0.0.1",
     "http://127.0.0.1:99999", "http://\uff11\uff12\uff17.0.0.1"],
)  # fmt: skip
def test_metadata_services_and_other_urls_are_refused_in_every_network(url: str) -> None:
    assert resolve(url) is None


def test_only_addresses_inside_of_the_networks_are_used() -> None:
    assert resolve("http://localhost:8265", LOOPBACK)
    assert resolve("http://127.0.0.2:8265", LOOPBACK)
    for url in ("http://10.0.0.1:8265", "http://3232235777:80", "http://[fd00::1]:8265"):
        assert resolve(url, LOOPBACK) is None
