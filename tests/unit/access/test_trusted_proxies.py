"""X-Forwarded-* headers count only from trusted proxies."""

from pathlib import Path

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
