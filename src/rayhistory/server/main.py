"""The `historyserver` program."""

import asyncio
import dataclasses
import errno
import logging
import socket
import sys
import threading

import uvicorn
from starlette.applications import Starlette

from rayhistory import jsonlog
from rayhistory.access import audit
from rayhistory.access.origins import names_of
from rayhistory.access.tls import Certificate
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.layout import Layout
from rayhistory.server.app import create_app
from rayhistory.server.catalogue import Catalogue
from rayhistory.server.memory import give_back_early, look_for_cycles_rarely
from rayhistory.settings import SERVER, Settings, parse_command_line
from rayhistory.storage import open_store

log = logging.getLogger(__name__)

_KEEP_ALIVE = 75
"""Seconds; longer than clients and load balancers keep a connection: who closes last never hits a closed one."""
_DESCRIPTION = "Serves the sessions in the store: the Ray Dashboard, Ray's API and curl, for clusters that are gone."


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is found before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UsageError(f"port {port} of {host} {reason}: choose another with --port") from None
    listener.listen(2048)
    return listener


def listening(settings: Settings, host: str) -> tuple[Settings, Certificate | None]:
    """What follows from where the server listens: the names that it goes by, and HTTPS if there is a certificate."""
    certificate = None
    if settings.tls_cert or settings.tls_key:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    if settings.audit_log:
        audit.set_up(settings.audit_log)
    return dataclasses.replace(settings, allowed_hosts=names_of(settings.allowed_hosts, host)), certificate


def serve(app: Starlette, listener: socket.socket, certificate: Certificate | None = None) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    give_back_early()
    look_for_cycles_rarely()
    if certificate:
        certificate.watch()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=_KEEP_ALIVE,
        proxy_headers=False,  # who is believed about whom is said by --trusted-proxies
        server_header=False,
        ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
        ws_per_message_deflate=False,  # followers of logs: quick rather than small
        ws_ping_interval=None,  # Ray's client may be busy for long with what it got
    )
    uvicorn.Server(config).run([listener])


async def say_what_is_there(settings: Settings) -> None:
    """One line about the store: a wrong bucket is seen here, before anybody misses a session."""
    store = open_store(settings)
    about = {"backend": settings.storage_backend, "store": store.url, "prefix": settings.storage_root_dir}
    try:
        entries = await Catalogue(store, Layout(settings.storage_root_dir), settings.vanished_after).entries()
        log.info("the store was listed", extra={**about, "sessions": len(entries)})
    except RayHistoryError as error:
        log.warning("the store cannot be listed", extra={**about, "reason": str(error)})
    finally:
        await store.close()


def main() -> None:
    settings, warnings = parse_command_line(SERVER, sys.argv[1:], _DESCRIPTION)
    jsonlog.set_up(settings.log_level)
    for warning in warnings:
        log.warning(warning)
    host = settings.host or "0.0.0.0"  # noqa: S104
    try:
        settings, certificate = listening(settings, host)
        app = create_app(settings)
        listener = listen(host, settings.port)
        scheme = "https" if certificate else "http"
        log.info("serving", extra={"address": f"{scheme}://{host}:{listener.getsockname()[1]}/"})
        if settings.auth == "none" and host in ("0.0.0.0", "::"):  # noqa: S104
            log.warning("everyone who can reach this address can read every session: see --auth")
        # A long listing, or a store that is away, holds nobody up.
        threading.Thread(target=lambda: asyncio.run(say_what_is_there(settings)), daemon=True).start()
        if settings.use_auth_token_mode:
            log.warning(
                "--use-auth-token-mode: clusters get the tokens of those who look at them"
                if settings.live
                else "--use-auth-token-mode has no effect without --live"
            )
        serve(app, listener, certificate)
    except UsageError as error:
        sys.stderr.write(f"historyserver: {error}\n")
        raise SystemExit(2) from None
