"""The `collector` command."""

import asyncio
import contextlib
import logging
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import uvicorn
import uvloop

from rayhistory import jsonlog
from rayhistory.collector.connections import KEEP_ALIVE, Connection
from rayhistory.collector.service import Collector
from rayhistory.collector.supervise import step_back
from rayhistory.errors import UsageError
from rayhistory.settings import COLLECTOR, Settings, parse_command_line
from rayhistory.storage import Store, open_store

log = logging.getLogger(__name__)

_DESCRIPTION = """\
Runs beside a Ray node and keeps what it knows: takes the events that Ray posts to /v1/events, and uploads its
logs and, on the head, the answers of its dashboard. Can be started before Ray, and waits for it."""

_LAST_REQUESTS = 3
_THREADS = 16


def main(argv: Sequence[str] | None = None) -> None:
    settings, warnings = parse_command_line(COLLECTOR, sys.argv[1:] if argv is None else argv, _DESCRIPTION)
    jsonlog.set_up(settings.log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    for warning in warnings:
        log.warning(warning)
    try:
        store = open_store(settings, writable=True)
        listener = _listen(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, store, listener))
    except UsageError as error:
        sys.stderr.write(f"{COLLECTOR}: {error}\n")
        raise SystemExit(2) from None


async def _run(settings: Settings, store: Store, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="work", initializer=step_back))
    cluster = settings.ray_cluster_name or host_cluster_name(socket.gethostname())
    collector = Collector(settings, cluster, store)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told_to_end, collector)
    await collector.start()
    server = _Server(
        uvicorn.Config(
            collector.app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # whether a peer is on this machine is not for the peer to say
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=_LAST_REQUESTS,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    host, port, *_ = listener.getsockname()
    log.info(
        "listening",
        extra={
            "host": host,
            "port": port,
            "role": settings.role,
            "namespace": settings.ray_cluster_namespace,
            "cluster": cluster,
            "store": store.url,
            "prefix": settings.storage_root_dir,
            "ray_tmp_root": settings.ray_tmp_root,
        },
    )

    async def stop_listening() -> None:
        server.should_exit = True
        await serving

    await collector.stop.wait()
    await collector.end(stop_listening)


def _told_to_end(collector: Collector) -> None:
    """The second time, it hurries."""
    (collector.hurry if collector.stop.is_set() else collector.stop).set()


class _Server(uvicorn.Server):
    """Signals are ours: the server goes on for a while after the first one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(settings: Settings) -> socket.socket:
    """Bound here, so that a port in use is a line and not a stack trace."""
    host, port = settings.events_host, settings.events_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); "
            "choose another with --events-port or --events-host"
        ) from None


def host_cluster_name(host: str) -> str:
    """A host's name as the name of a cluster: what DNS-1123 does not allow becomes a dash."""
    labels = (re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") for label in host.split("."))
    return ".".join(label for label in labels if label)[:63].strip("-.") or "local"


if __name__ == "__main__":
    main()
