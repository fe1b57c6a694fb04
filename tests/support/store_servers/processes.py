"""Start a server process on free ports, wait until it is ready, and stop it."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port(offset: int = 0) -> int:
    """Return a free port such that port + `offset` is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port + offset > 65535:
                continue
            try:
                if offset:
                    second.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def server_process(command: Sequence[str | Path], directory: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """Run a server while the block runs. Its output is in its data directory."""
    log = directory / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.kill()  # its data is temporary
        process.wait()
