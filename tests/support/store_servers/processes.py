"""Starting a server on free ports of this machine, waiting for it, and ending it."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port(also: int = 0) -> int:
    """A port that nobody listens on, with the one `also` above it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            if port + also > 65535:
                continue
            try:
                if also:
                    other.bind(("127.0.0.1", port + also))
            except OSError:
                continue
            return port


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(command: Sequence[str | Path], directory: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """The server while the block runs; its output is kept beside its data."""
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
        process.kill()  # what it holds is scratch
        process.wait()
