"""Trusted reverse proxies (X-Forwarded-*)."""

from collections.abc import Iterable

from starlette.requests import HTTPConnection

from rayhistory.networks import Networks, parse_ip

_MAX_ADDRESS_CHARS = 64


class TrustedProxies:
    """Networks whose X-Forwarded-For and X-Forwarded-Proto headers are trusted."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.networks = Networks(addresses, "--trusted-proxies")

    def trusts(self, connection: HTTPConnection) -> bool:
        return bool(connection.client) and self.contains(connection.client.host)  # type: ignore[union-attr]

    def contains(self, address: str) -> bool:
        return parse_ip(address) in self.networks

    def client_address(self, connection: HTTPConnection) -> str:
        """Return the visitor's address.

        Behind trusted proxies, this is the last address in X-Forwarded-For that is not one of a trusted proxy.
        """
        address = connection.client.host if connection.client else ""
        if self.trusts(connection):
            for hop in reversed(",".join(connection.headers.getlist("x-forwarded-for")).split(",")):
                if not hop.strip():
                    break
                address = hop.strip()[:_MAX_ADDRESS_CHARS]
                if not self.contains(address):
                    break
        return address

    def is_secure(self, connection: HTTPConnection) -> bool:
        """Return True if the visitor connects with HTTPS, directly or through a trusted proxy."""
        forwarded = connection.headers.get("x-forwarded-proto", "") if self.trusts(connection) else ""
        first = forwarded.partition(",")[0].strip().lower()
        return (first or connection.url.scheme) in ("https", "wss")
