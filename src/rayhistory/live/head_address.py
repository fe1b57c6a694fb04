"""The address of a live cluster's dashboard, and which addresses are allowed."""

import ipaddress
import socket
import ssl
from urllib.parse import urlsplit

import msgspec


class HeadAddress(msgspec.Struct, frozen=True):
    """Where a head's dashboard is. Created only from Kubernetes or from a collector's record."""

    url: str
    headers: dict[str, str] = {}
    verify: ssl.SSLContext | bool = True


def is_allowed_head_url(url: str) -> bool:
    """Reject URLs that are no plain origin, and the link-local addresses of cloud metadata services.

    Anyone who can write to the store can write such a URL into a collector's record.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    has_more = parts.path or parts.query or parts.username
    if parts.scheme not in ("http", "https") or not host or not host.isascii() or has_more:
        return False
    ip = _ip_address(host)
    return not (ip and (ip.is_link_local or ip.is_multicast or ip.is_unspecified))


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address in every notation that the system's resolver accepts; None if the host is a name."""
    try:
        address = ipaddress.IPv6Address(host)
        return address.ipv4_mapped or address
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError:
        return None
