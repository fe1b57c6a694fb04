"""Send one notification to its receiver: a webhook or a command."""

import asyncio
import functools
import ipaddress
import os
import socket
import ssl
import time
from urllib.parse import urlsplit, urlunsplit

import httpx

from rayhistory.errors import RayHistoryError
from rayhistory.networks import IpAddress, Networks, parse_ip
from rayhistory.notify.notification import Notification
from rayhistory.notify.notify_rules import NotifyRule
from rayhistory.notify.payloads import CLOUD_EVENT, cloud_event, signature, slack_message

_TIMEOUT_S = 10.0
_COMMAND_TIMEOUT_S = 60.0
_COMMAND_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
"""Variables of the server's environment that commands get. Credentials are not included."""


class DeliveryFailed(RayHistoryError):
    """The receiver did not accept the notification. It is sent again later."""

    code = "delivery_failed"
    http_status = 502


async def deliver(rule: NotifyRule, notification: Notification, server_url: str) -> None:
    """Send a notification. Raise DeliveryFailed if the receiver did not accept it."""
    if rule.command:
        body = cloud_event(notification, server_url, include_text=rule.include_text)
        return await _run_command(rule.command, body)
    if rule.slack:
        body = slack_message(notification, server_url, include_text=rule.include_text)
        return await _post(rule, body, {"content-type": "application/json"})
    body = cloud_event(notification, server_url, include_text=rule.include_text)
    headers = {"content-type": CLOUD_EVENT, "webhook-id": notification.id}
    if secret := rule.secret:
        sent_at = int(time.time())
        headers |= {
            "webhook-timestamp": str(sent_at),
            "webhook-signature": signature(secret, notification.id, sent_at, body),
        }
    return await _post(rule, body, headers)


async def _post(rule: NotifyRule, body: bytes, headers: dict[str, str]) -> None:
    """Send a POST to an address that was resolved once and checked. Redirects and proxies are not used."""
    parts = urlsplit(rule.url)
    host = parts.hostname or ""
    address = await _allowed_address(host, parts.port or (443 if parts.scheme == "https" else 80), rule.networks)
    pinned = f"[{address}]" if address.version == 6 else str(address)
    url = urlunsplit((parts.scheme, pinned + (f":{parts.port}" if parts.port else ""), parts.path, parts.query, ""))
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S * 2),
            httpx.AsyncClient(
                verify=await asyncio.to_thread(_tls), trust_env=False, follow_redirects=False, timeout=_TIMEOUT_S
            ) as http,
            http.stream(
                "POST", url, content=body, headers=headers | {"host": parts.netloc.rpartition("@")[2]},
                extensions={"sni_hostname": host},
            ) as response,
        ):  # fmt: skip
            if not response.is_success:
                raise DeliveryFailed(f"the receiver returned status {response.status_code}")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise DeliveryFailed(f"no response from the receiver: {type(error).__name__}") from None


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context with the certificate authorities. It is cached, because loading takes long."""
    return httpx.create_ssl_context(trust_env=False)


async def _allowed_address(host: str, port: int, networks: Networks) -> IpAddress:
    """Resolve a name once; raise DeliveryFailed unless all its addresses are public, or in an allowed network."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DeliveryFailed(f"cannot resolve the receiver's host name: {error.strerror}") from None
    addresses = [address for *_, place in found if (address := parse_ip(str(place[0])))]
    for address in addresses:
        if not is_public(address) and address not in networks:
            raise DeliveryFailed(f"{address} is not a public address: add its network to allow_networks of the rule")
    if not addresses:
        raise DeliveryFailed("the receiver's host name has no address")
    return addresses[0]


def is_public(address: IpAddress) -> bool:
    """Return whether an address is public: not loopback, link-local, private, shared or reserved."""
    if isinstance(address, ipaddress.IPv6Address) and (address.sixtofour or address.teredo):
        return False  # they hide an address of the other kind
    return address.is_global and not address.is_multicast and not address.is_reserved


async def _run_command(command: tuple[str, ...], event: bytes) -> None:
    """Run a command with the event on standard input.

    The event is never in the arguments, where a shell could interpret it.
    """
    environ = {name: os.environ[name] for name in _COMMAND_VARIABLES if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, env=environ, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise DeliveryFailed(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        await asyncio.wait_for(process.communicate(event), _COMMAND_TIMEOUT_S)
    except TimeoutError:
        raise DeliveryFailed(f"{command[0]} did not exit within {_COMMAND_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise DeliveryFailed(f"{command[0]} exited with status {process.returncode}")
