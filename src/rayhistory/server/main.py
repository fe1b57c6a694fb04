"""The `historyserver` program."""

import errno
import logging
import socket
import sys

import uvicorn
from starlette.applications import Starlette

from rayhistory import jsonlog
from rayhistory.errors import UsageError
from rayhistory.server.app import create_app
from rayhistory.server.memory import give_back_early
from rayhistory.settings import SERVER, parse_command_line

log = logging.getLogger(__name__)

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


def serve(app: Starlette, listener: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    give_back_early()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        ws_per_message_deflate=False,  # followers of logs: quick rather than small
        ws_ping_interval=None,  # Ray's client may be busy for long with what it got
    )
    uvicorn.Server(config).run([listener])


def main() -> None:
    settings, warnings = parse_command_line(SERVER, sys.argv[1:], _DESCRIPTION)
    jsonlog.set_up(settings.log_level)
    for warning in warnings:
        log.warning(warning)
    host = settings.host or "0.0.0.0"  # noqa: S104
    try:
        app = create_app(settings)
        listener = listen(host, settings.port)
        log.info("serving", extra={"address": f"http://{host}:{listener.getsockname()[1]}/"})
        if host in ("0.0.0.0", "::"):  # noqa: S104
            log.warning("everyone who can reach this address can read every session: there is no access control")
        serve(app, listener)
    except UsageError as error:
        sys.stderr.write(f"historyserver: {error}\n")
        raise SystemExit(2) from None
