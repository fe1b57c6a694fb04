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
from rayhistory.access.hosts import default_allowed_hosts, is_loopback
from rayhistory.access.tls import Certificate
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.optional_packages import skip_pandas
from rayhistory.server.app import create_app
from rayhistory.server.memory import relax_garbage_collection, return_freed_memory
from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import SERVER, Settings, parse_command_line
from rayhistory.storage import open_store

log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 75
"""Time that idle connections stay open: longer than clients and load balancers keep them, so that none reuses a closed
one.
"""
_PING_INTERVAL_S = 20
"""Interval of WebSocket pings: below the 60 s after which load balancers close idle connections.

A followed log may be quiet.
"""
_LISTEN_BACKLOG = 2048
_INTERRUPTED = 128 + 2
_DESCRIPTION = "Serve the sessions in the store: the Ray Dashboard and Ray's API, for clusters that are gone."


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. A port in use is reported before anything else starts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise UsageError(f"port {port} of {host} {reason}: choose another with --port") from None
    listener.listen(_LISTEN_BACKLOG)
    return listener


def prepare_access(settings: Settings, host: str) -> tuple[Settings, Certificate | None]:
    """Open the audit log, load the certificate, and derive the allowed hosts from the listening address."""
    certificate = None
    if settings.tls_cert or settings.tls_key:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    if settings.audit_log:
        audit.log_to_file(settings.audit_log)
    allowed_hosts = default_allowed_hosts(settings.allowed_hosts, host)
    return dataclasses.replace(settings, allowed_hosts=allowed_hosts), certificate


def warn_about_open_access(settings: Settings, host: str) -> None:
    """Log a warning if other machines can read every session."""
    if settings.auth == "none" and not is_loopback(host):
        log.warning("authentication is off: everyone who can reach this address can read every session")


def serve(app: Starlette, listener: socket.socket, certificate: Certificate | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    return_freed_memory()
    relax_garbage_collection()
    if certificate:
        certificate.watch()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=_KEEP_ALIVE_S,
        proxy_headers=False,  # --trusted-proxies decides instead
        server_header=False,
        ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
        ws_per_message_deflate=False,  # latency matters more than size when following logs
        ws_ping_interval=_PING_INTERVAL_S,
        ws_ping_timeout=None,  # Ray's client may not reply while it prints what it received
    )
    uvicorn.Server(config).run([listener])


async def log_store_summary(settings: Settings) -> None:
    """Log the store and its number of sessions, so that a wrong bucket or prefix is seen at start."""
    store = open_store(settings)
    fields = {"backend": settings.storage_backend, "store": store.url, "prefix": settings.storage_root_dir}
    try:
        entries = await SessionCatalog.from_settings(store, Layout(settings.storage_root_dir), settings).entries()
        log.info("listed the sessions in the store", extra={**fields, "sessions": len(entries)})
    except RayHistoryError as error:
        log.warning("cannot list sessions in the store, starting anyway", extra={**fields, "reason": str(error)})
    finally:
        await store.close()


def main() -> None:
    skip_pandas()
    settings, warnings = parse_command_line(SERVER, sys.argv[1:], _DESCRIPTION)
    jsonlog.configure_logging(settings.log_level)
    for warning in warnings:
        log.warning(warning)
    host = settings.host or "0.0.0.0"  # noqa: S104
    try:
        settings, certificate = prepare_access(settings, host)
        app = create_app(settings)
        listener = bind(host, settings.port)
        scheme = "https" if certificate else "http"
        log.info("serving", extra={"address": f"{scheme}://{host}:{listener.getsockname()[1]}/"})
        warn_about_open_access(settings, host)
        # In a thread: a long listing or an unreachable store must not delay the start.
        threading.Thread(target=lambda: asyncio.run(log_store_summary(settings)), daemon=True).start()
        if settings.use_auth_token_mode:
            log.warning(
                "--use-auth-token-mode sends visitors' tokens to live clusters"
                if settings.live
                else "--use-auth-token-mode has no effect without --live"
            )
        serve(app, listener, certificate)
    except UsageError as error:
        sys.stderr.write(f"historyserver: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # uvicorn has stopped serving, and raises it again
        raise SystemExit(_INTERRUPTED) from None
