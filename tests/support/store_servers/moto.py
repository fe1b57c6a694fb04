"""moto: an emulator of S3 that answers in the order of bytes, as S3 does, and does not mind what stands before it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storeservers.processes import answers, free_port, started


@contextmanager
def moto(directory: Path) -> Iterator[str]:
    port = free_port()
    command = [Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    with started(command, directory, lambda: answers(port)):
        yield f"http://127.0.0.1:{port}"
