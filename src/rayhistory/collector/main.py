"""The `collector` command."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import uvicorn
import uvloop

from rayhistory import jsonlog
from rayhistory.collector.ingest.connections import KEEP_ALIVE_S, BoundedConnection
from rayhistory.collector.service import Collector
from rayhistory.collector.supervise import lower_thread_priority
from rayhistory.errors import UsageError
from rayhistory.names import cluster_name_from
from rayhistory.settings import COLLECTOR, Settings, parse_command_line
from rayhistory.storage import Store, open_store

log = logging.getLogger(__name__)

_DESCRIPTION = """\
Runs beside a Ray node and stores its history: receives the events that Ray posts to /v1/events, and uploads
logs, metrics and, on the head, dashboard responses. May be started before Ray."""

_GRACEFUL_SHUTDOWN_S = 3
_WORKER_THREADS = 16


def main(argv: Sequence[str] | None = None) -> None:
    settings, warnings = parse_command_line(COLLECTOR, sys.argv[1:] if argv is None else argv, _DESCRIPTION)
    jsonlog.configure_logging(settings.log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        store = open_store(settings, writable=True)
        listener = _listen(settings)
        for warning in warnings:  # after the checks, so that a wrong call has one line
            log.warning(warning)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, store, listener))
    except UsageError as error:
        sys.stderr.write(f"{COLLECTOR}: {error}\n")
        raise SystemExit(2) from None


async def _run(settings: Settings, store: Store, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(
        ThreadPoolExecutor(_WORKER_THREADS, thread_name_prefix="worker", initializer=lower_thread_priority)
    )
    cluster = settings.ray_cluster_name or cluster_name_from(socket.gethostname())
    collector = Collector(settings, cluster, store)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, _on_signal, collector, signal_number)
    await collector.start()
    server = _CollectorServer(
        uvicorn.Config(
            collector.app,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # X-Forwarded-For must not turn a remote peer into a local one
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_S,
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
            "spool": str(collector.spool_path),
        },
    )

    async def stop_listening() -> None:
        server.should_exit = True
        await serving

    await collector.stop.wait()
    await collector.shut_down(stop_listening)


def _on_signal(collector: Collector, number: signal.Signals) -> None:
    """Shut down gracefully on the first signal, and fast on the second."""
    if collector.stop.is_set():
        collector.fast_shutdown.set()
    else:
        collector.stop_signal = number.name
        collector.stop.set()


class _CollectorServer(uvicorn.Server):
    """A uvicorn server without signal handlers: it keeps serving after SIGTERM until the collector stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(settings: Settings) -> socket.socket:
    """Bind the port here and not in uvicorn, so that a port in use gives a one-line error.

    `::` also accepts IPv4. Ray exports to 127.0.0.1 even if pods have only IPv6 addresses.
    """
    host, port = settings.events_host, settings.events_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=dual_stack)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); choose another address with --events-port "
            "or --events-host"
        ) from None


if __name__ == "__main__":
    main()
