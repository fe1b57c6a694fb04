"""A real history server process on a free port."""

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

_TIMEOUT_S = 60.0


@contextmanager
def running_server(store: Path, work: Path, *flags: str, at_start: str = "") -> Iterator[str]:
    """Run a server and yield its address; the server and its children run the Python code `at_start` first."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "sitecustomize.py").write_text(at_start)
    removed = ("RAYHISTORY_", "STORAGE_", "LOCAL_STORAGE_", "PYTHONPATH")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("historyserver"), "--host", "127.0.0.1", "--port", "0", *flags],
        env={name: value for name, value in os.environ.items() if not name.startswith(removed)}
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
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield _address(lines)
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


def _read(output: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    for line in output:
        lines.put(line)
    lines.put("")


def _address(lines: "queue.SimpleQueue[str]") -> str:
    output = []
    while line := lines.get(timeout=_TIMEOUT_S):
        output.append(line)
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(entry, dict) and "address" in entry:
            return str(entry["address"]).rstrip("/")
    raise AssertionError(f"the server did not start: {''.join(output)}")
