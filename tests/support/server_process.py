"""The real history server, as a process of its own, on a port that was free."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

_PATIENCE = 60.0


@contextmanager
def serving(store: Path, work: Path, *, at_start: str = "") -> Iterator[str]:
    """The server's address. `at_start` is Python that it, and all that it starts, run before anything else."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "sitecustomize.py").write_text(at_start)
    foreign = ("RAYHISTORY_", "STORAGE_", "LOCAL_STORAGE_", "PYTHONPATH")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("historyserver"), "--host", "127.0.0.1", "--port", "0"],
        env={name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        | {
            "LOCAL_STORAGE_DIR": str(store),
            "RAYHISTORY_CACHE_DIR": str(work / "cache"),
            "RAYHISTORY_VANISHED_AFTER": "1s",
            "PYTHONPATH": str(work),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    listening = threading.Thread(target=_listen, args=(process.stdout, said), daemon=True)
    listening.start()
    try:
        yield _address(said)
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listening.join()
        process.stdout.close()


def _listen(output: IO[str], said: "queue.SimpleQueue[str]") -> None:
    for line in output:
        said.put(line)
    said.put("")


def _address(said: "queue.SimpleQueue[str]") -> str:
    heard = []
    while line := said.get(timeout=_PATIENCE):
        heard.append(line)
        try:
            fact = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(fact, dict) and "address" in fact:
            return str(fact["address"]).rstrip("/")
    raise AssertionError(f"the server did not start: {''.join(heard)}")
