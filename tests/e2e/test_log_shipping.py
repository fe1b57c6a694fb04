"""Log shipping by collectors that are killed: each line is in the store, once."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.stored_logs import stored_logs

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a short path, because Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory)


def start(home: Path, root: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "rayhistory.collector.main", "--events-host=127.0.0.1", "--events-port=0"),
            *(f"--event-data-dir={home / 'spool'}", "--ray-cluster-name=test", "--log-interval=200ms", *flags),
        ],
        env={
            **os.environ,
            "STORAGE_BACKEND": "local",
            "LOCAL_STORAGE_DIR": str(home / "store"),
            "RAY_TMP_ROOT": str(root),
            "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
        },
        stderr=(home / "collector.log").open("ab"),
    )


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def test_killed_collectors_lose_and_repeat_no_line(home: Path) -> None:
    """The log grows and is rotated while collectors are killed and restarted."""
    logs = home / "ray" / SESSION / "logs"
    (logs.parent / "sockets").mkdir(parents=True)
    logs.mkdir()
    (logs.parent / f"metrics_export_port_{NODE}").write_text("1")
    (home / "ray" / "session_latest").symlink_to(logs.parent)
    lines = 0
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(logs.parent / "sockets" / "raylet"))
        raylet.listen()
        for round_ in range(8):
            collector = start(home, home / "ray")
            deadline = time.monotonic() + 1.5 + 0.1 * round_
            while time.monotonic() < deadline:
                with (logs / "raylet.out").open("a") as file:
                    for _ in range(50):
                        lines += 1
                        file.write(f"line {lines}\n")
                if lines % 2000 == 0:
                    for number in range(30, 0, -1):
                        newer = logs / (f"raylet.{number - 1}.out" if number > 1 else "raylet.out")
                        if newer.exists():
                            newer.rename(logs / f"raylet.{number}.out")
                time.sleep(0.01)
            collector.kill()
            collector.wait()
        collector = start(home, home / "ray", "--log-layout=packs")
        eventually(
            lambda: (
                sum(content.count(b"\n") for content in stored_logs(home / "store", "test", SESSION).values()) >= lines
            )
        )
        collector.kill()
        collector.wait()
    numbers = [
        int(number)
        for content in stored_logs(home / "store", "test", SESSION).values()
        for number in re.findall(rb"line (\d+)\n", content)
    ]
    assert sorted(numbers) == list(range(1, lines + 1))
