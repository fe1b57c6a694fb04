"""moto, an S3 emulator that lists keys in byte order, as S3 does, and accepts any host name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.store_servers.processes import free_port, is_listening, server_process


@contextmanager
def moto(directory: Path) -> Iterator[str]:
    port = free_port()
    command: list[str | Path] = [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    with server_process(command, directory, lambda: is_listening(port)):
        yield f"http://127.0.0.1:{port}"
