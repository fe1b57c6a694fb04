"""X-Forwarded-* headers count only from trusted proxies."""

from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from rayhistory.access.trusted_proxies import TrustedProxies
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, write_access_file


def test_forwarded_protocol_counts_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    headers = bearer(ALLOWED_TOKEN) | {"X-Forwarded-For": "198.51.100.7, 127.0.0.2", "X-Forwarded-Proto": "https"}
    access_file = write_access_file(tmp_path)
    with serve_two_namespaces(
        tmp_path, auth="token", access_file=access_file, trusted_proxies=("127.0.0.0/8",)
    ) as client:
        for forwarded in ("https", "https,http"):
            headers["X-Forwarded-Proto"] = forwarded
            cookie = client.post("/api/authenticate", headers=headers, json={}).headers["set-cookie"]
            assert cookie.endswith("; Secure")
    with serve_two_namespaces(tmp_path, auth="token", access_file=access_file) as client:
        cookie = client.post("/api/authenticate", headers=headers, json={}).headers["set-cookie"]
        assert "Secure" not in cookie


def test_ipv4_address_mapped_to_ipv6_is_matched() -> None:
    assert TrustedProxies(("::1", "10.0.0.0/8")).contains("::ffff:10.1.2.3")


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("192.0.2.1, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("198.51.100.7, ", "10.0.0.1"),
    ],
    ids=["a proxy", "invented by the visitor", "only proxies", "empty"],
)
def test_address_of_a_visitor_is_the_last_one_that_is_no_proxy(forwarded: str, address: str) -> None:
    headers = [(b"x-forwarded-for", forwarded.encode())]
    connection = HTTPConnection({"type": "http", "client": ("10.0.0.1", 5), "headers": headers})
    assert TrustedProxies(["10.0.0.0/8"]).client_address(connection) == address
