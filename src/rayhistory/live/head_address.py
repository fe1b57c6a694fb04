"""The address of a live cluster's dashboard, and the check of an address that a collector recorded."""

import asyncio
import socket
import ssl
from urllib.parse import urlsplit

import msgspec

from rayhistory.networks import Networks, parse_ip

_RESOLVE_TIMEOUT_S = 5.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HeadAddress(msgspec.Struct, frozen=True):
    """The address of a head's dashboard. Created only from Kubernetes or from a collector's record."""

    url: str
    headers: dict[str, str] = {}
    verify: ssl.SSLContext | bool = True
    ip: str = ""
    """IP address to connect to, without resolving a name. Empty for names that Kubernetes resolves."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return urlsplit(self.url).netloc

    @property
    def connect_url(self) -> str:
        """The URL with the checked IP address instead of the name, so that no later lookup gives another one."""
        if not self.ip:
            return self.url
        parts = urlsplit(self.url)
        ip = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{parts.scheme}://{ip}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"


async def resolve_registered_head(url: str, networks: Networks) -> HeadAddress | None:
    """Resolve a URL from a collector's record once. Return None if no address of its host is in these networks.

    Also return None if the URL has more than scheme, host and port. Everybody who can write to the store can write such
    a URL, and its host may resolve to another address each time.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    has_more = parts.path or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in _DEFAULT_PORTS or not host or not host.isascii() or has_more:
        return None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(host, port or _DEFAULT_PORTS[parts.scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return None
    for *_, sockaddr in found:
        ip = parse_ip(str(sockaddr[0]))
        if ip in networks and ip and not (ip.is_link_local or ip.is_multicast or ip.is_unspecified):
            return HeadAddress(url, ip=str(ip))
    return None
