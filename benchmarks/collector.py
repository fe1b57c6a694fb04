"""Measure the collector process: event rate, CPU, latency and memory.

    .venv/bin/python benchmarks/collector.py [--seconds 10] [--only NAME,…]

Every rate includes compression, upload to a local store and the fdatasync before each response. Latency is measured
from the time a POST was due, so that a stall counts in full. BENCH_DIR is the directory of spool and store. The load
comes from another process, `collector_load.py`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOAD = Path(__file__).with_name("collector_load.py")
SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
CONNECTIONS = 4
_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))


# The collector


@dataclass
class Usage:
    """CPU seconds and peak resident size of a process, and CPU time that the host stole.

    Latencies are not reliable while much CPU time is stolen.
    """

    pid: int
    peak: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._began, self._clock, self._stolen = self.cpu(), time.perf_counter(), stolen()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS  # own time, and that of reaped children

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            with suppress(OSError):
                self.peak = max(self.peak, resident(self.pid))

    def stop(self) -> tuple[float, float, float]:
        """Return CPU seconds, elapsed seconds, and the share of all cores that was stolen."""
        self._stopped.set()
        self._watcher.join()
        elapsed = time.perf_counter() - self._clock
        return self.cpu() - self._began, elapsed, (stolen() - self._stolen) / elapsed / len(_CORES)


def stolen() -> float:
    """Seconds of CPU time that the host has stolen since boot."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _TICKS


def resident(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


@contextmanager
def collector(*, pinned: bool = True, group: "Cgroup | None" = None) -> Iterator[tuple[int, int, Path]]:
    """Run a collector beside a simulated Ray; yields its pid, port and store."""
    home = Path(tempfile.mkdtemp(prefix="rhbench", dir=os.environ.get("BENCH_DIR")))
    directory = home / SESSION
    directory.joinpath("sockets").mkdir(parents=True)
    directory.joinpath("logs").mkdir()
    directory.joinpath(f"metrics_export_port_{NODE}").write_text("1")
    with socket.socket(socket.AF_UNIX) as raylet:
        raylet.bind(str(directory / "sockets" / "raylet"))
        raylet.listen()
        home.joinpath("session_latest").symlink_to(directory)
        port = free_port()
        with home.joinpath("log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rayhistory.collector.main", "--events-host=127.0.0.1"],
                env={
                    **os.environ,
                    "EVENTS_PORT": str(port),
                    "STORAGE_BACKEND": "local",
                    "LOCAL_STORAGE_DIR": str(home / "store"),
                    "RAY_TMP_ROOT": str(home),
                    "RAY_COLLECTOR_EVENT_DATA_DIR": str(home / "spool"),
                    "RAY_CLUSTER_NAME": "bench",
                    "RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9",
                },
                stderr=log,
            )
        try:
            if group:
                group.add(process.pid)
            elif pinned and len(_CORES) > 1:
                os.sched_setaffinity(process.pid, {_CORES[0]})
            await_port(port)
            time.sleep(2)
            yield process.pid, port, home / "store"
            raylet.close()
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            shutil.rmtree(home)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def await_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise SystemExit("collector did not start in 20 s")


class Cgroup:
    """A cgroup (version 2 or 1) with a CPU quota and a memory limit. Raises OSError without permission."""

    def __init__(self, millicores: int, memory: int) -> None:
        quota, name = millicores * 100, f"rayhistory-bench-{os.getpid()}"
        root = Path("/sys/fs/cgroup")
        if "cpu" in _read_text(root / "cgroup.subtree_control").split():
            self._limits = {root / name: {"cpu.max": f"{quota} 100000", "memory.max": str(memory)}}
        else:
            self._limits = {
                root / "cpu" / name: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": str(quota)},
                root / "memory" / name: {"memory.limit_in_bytes": str(memory)},
            }
        try:
            for path, limits in self._limits.items():
                path.mkdir()
                for file, value in limits.items():
                    (path / file).write_text(value)
        except OSError:
            self.close()
            raise

    def add(self, pid: int) -> None:
        for path in self._limits:
            (path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        for path in self._limits:
            with suppress(OSError):
                path.rmdir()


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# Measurements


def run_load(port: int, rate: float, batch: int, seconds: float) -> dict[str, float]:
    flags = [f"--port={port}", f"--rate={rate}", f"--batch={batch}", f"--seconds={seconds}"]
    child = subprocess.Popen(
        [sys.executable, str(LOAD), *flags],
        stdout=subprocess.PIPE,
    )
    os.sched_setaffinity(child.pid, {_CORES[-1]})
    output, _ = child.communicate()
    return dict(json.loads(output))


def measure(name: str, rate: float, *, batch: int = 1000, seconds: float, pinned: bool = True, **options: Any) -> None:
    with collector(pinned=pinned, **options) as (pid, port, store):
        usage = Usage(pid)
        figures = run_load(port, rate, batch, seconds)
        cpu, elapsed, stolen_share = usage.stop()
        stored = sum(path.stat().st_size for path in store.rglob("*.gz"))
    events = figures["events"]
    print(
        f"{name:<34}{events / figures['seconds']:>10,.0f}{cpu / elapsed:>8.1%}"
        f"{cpu / max(1, events) * 1e6:>9.1f}{figures['p50']:>8.1f}{figures['p99']:>8.1f}{figures['max']:>8.1f}"
        f"{usage.peak / 2**20:>9.1f}{figures['megabytes']:>9.0f}{stored / 1e6:>8.0f}{figures['refused']:>6.0f}"
        f"{stolen_share:>8.1%}",
        flush=True,
    )


def disk_probe() -> str:
    """Time writes of 128 KiB with fdatasync: the lower bound of all latencies."""
    milliseconds = []
    with tempfile.NamedTemporaryFile(dir=os.environ.get("BENCH_DIR")) as file:
        for _ in range(200):
            start_time = time.perf_counter()
            os.write(file.fileno(), b"x" * 131072)
            os.fdatasync(file.fileno())
            milliseconds.append((time.perf_counter() - start_time) * 1000)
    milliseconds.sort()
    p50, p99 = milliseconds[100], milliseconds[198]
    return f"disk: fdatasync p50 {p50:.1f} ms, p99 {p99:.1f} ms; load average {os.getloadavg()[0]:.1f}"


def measure_idle(seconds: float, name: str = "idle", group: Cgroup | None = None) -> None:
    with collector(group=group) as (pid, _, _):
        usage = Usage(pid)
        time.sleep(seconds)
        cpu, elapsed, stolen_share = usage.stop()
    print(
        f"{name:<34}{0:>10}{cpu / elapsed:>8.1%}{'':>33}{usage.peak / 2**20:>9.1f}{'':>23}{stolen_share:>8.1%}",
        flush=True,
    )


def measure_limited(seconds: float) -> None:
    try:
        group = Cgroup(200, 256 * 2**20)
    except OSError as error:
        print(f"200 millicores, 256 MiB: skipped, cannot create a cgroup here ({error})")
        return
    try:
        measure_idle(seconds, "200 millicores, 256 MiB: idle", group)
        for name, rate in (("1k", 1000), ("5k", 5000), ("maximum", 0)):
            measure(f"200 millicores, 256 MiB: {name}", rate, batch=100 if rate else 1000, seconds=seconds, group=group)
    finally:
        group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="", help="comma-separated: idle, rates, small, maximum, limited")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    print(f"{len(_CORES)} cores; {CONNECTIONS} connections; events of about 1.2 KB; {disk_probe()}")
    print(
        f"{'':<34}{'events/s':>10}{'CPU':>8}{'µs/event':>9}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}"
        f"{'peak MiB':>9}{'MB in':>9}{'stored':>8}{'503':>6}{'stolen':>8}"
    )
    if not only or "idle" in only:
        measure_idle(options.seconds)
    if not only or "rates" in only:
        for rate in (1000, 5000, 10_000):  # Ray posts every 0.1 s, at most 1,000 events
            measure(f"{rate:,}/s, {rate // 10} per POST", rate, batch=rate // 10, seconds=options.seconds)
        measure("5,000/s, 100 per POST", 5000, batch=100, seconds=options.seconds)
    if not only or "small" in only:
        measure("1,000/s, 5 per POST", 1000, batch=5, seconds=options.seconds)
        measure("5,000/s, 5 per POST", 5000, batch=5, seconds=options.seconds)
    if not only or "maximum" in only:
        for rate in (60_000, 100_000):
            measure(f"{rate:,}/s, on one core", rate, seconds=options.seconds)
        measure("maximum on one core", 0, seconds=options.seconds)
        measure("maximum on all cores", 0, seconds=options.seconds, pinned=False)
    if not only or "limited" in only:
        measure_limited(options.seconds)


if __name__ == "__main__":
    main()
