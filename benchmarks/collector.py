"""What the collector costs: a real process, under load from another one that is kept as cheap as possible.

    .venv/bin/python benchmarks/collector.py [--seconds 10] [--only NAME,…]

Every rate includes compression, upload to a local store and the fdatasync before each answer. Latency is counted
from the moment a POST was due, not from when it could be sent, so that a stall is seen in full.
"""

import argparse
import base64
import json
import os
import random
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

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
CONNECTIONS = 4
BODIES = 24
_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))


# The load


def random_id(dice: random.Random, size: int) -> str:
    return base64.b64encode(dice.randbytes(size)).decode()


def one_event(dice: random.Random, number: int) -> dict[str, Any]:
    """As Ray 2.60 posts them, about 1 KB each: a definition, and a lifecycle from each side."""
    job = f"AQAAA{'AQgw'[dice.randrange(4)]}=="
    base = {
        "eventId": random_id(dice, 28),
        "sourceType": "CORE_WORKER",
        "timestamp": f"2026-11-15T19:18:{number % 60:02d}.{dice.randrange(10**9):09d}Z",
        "severity": "INFO",
        "message": "",
        "sessionName": SESSION,
        "nodeId": base64.b64encode(bytes.fromhex(NODE)).decode(),
    }
    task = random_id(dice, 24)
    if number % 3 == 0:
        function = {
            "moduleName": "__main__",
            "className": "",
            "functionName": f"process_batch_{number % 17}",
            "functionHash": "7d5d7c4e0ba24f1b8f1f7d5f0a3b6f10",
        }
        definition = {
            "taskId": task,
            "taskAttempt": 0,
            "taskType": "NORMAL_TASK",
            "language": "PYTHON",
            "taskFunc": {"pythonFunctionDescriptor": function},
            "taskName": f"process_batch_{number % 17}",
            "requiredResources": {"CPU": 1.0},
            "jobId": job,
            "parentTaskId": random_id(dice, 24),
            "placementGroupId": "////////////////////////",
            "refIds": {},
            "serializedRuntimeEnv": '{"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/home/ray/app"}}',
            "labelSelector": {},
            "isDetachedActor": False,
            "callSite": "File /home/ray/app/main.py, line 120, in main\n" * 4,
        }
        return {**base, "eventType": "TASK_DEFINITION_EVENT", "taskDefinitionEvent": definition}
    states = ["PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FINISHED"]
    lifecycle = {
        "taskId": task,
        "taskAttempt": 0,
        "stateTransitions": [
            {"state": state, "timestamp": f"2026-11-15T19:18:{number % 60:02d}.{dice.randrange(10**9):09d}Z"}
            for state in states[: 3 + number % 3]
        ],
        "nodeId": base["nodeId"],
        "workerId": random_id(dice, 28),
        "workerPid": dice.randrange(10**5),
        "jobId": job,
        "actorReprName": "",
        "taskLogInfo": {
            "stdoutFile": f"/tmp/ray/{SESSION}/logs/worker-{dice.randbytes(14).hex()}-01000000-{number}.out",
            "stderrFile": f"/tmp/ray/{SESSION}/logs/worker-{dice.randbytes(14).hex()}-01000000-{number}.err",
            "stdoutStart": str(dice.randrange(10**6)),
            "stdoutEnd": str(dice.randrange(10**6)),
        },
    }
    return {**base, "eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": lifecycle}


def requests(batch: int, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    made = []
    for _ in range(BODIES):
        body = json.dumps([one_event(dice, number) for number in range(batch)]).encode()
        head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        made.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return made


def load(port: int, *, rate: float, batch: int, seconds: float) -> None:
    """Run in a process of its own; prints one JSON line. `rate` 0 is: as fast as it is answered."""
    bodies = requests(batch, 7)
    latencies: list[float] = []
    refused = [0]
    sent_bytes = [0]
    begin = time.perf_counter() + 0.2
    every = CONNECTIONS * batch / rate if rate else 0.0

    def one_connection(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due = begin + number * every / CONNECTIONS
            count = number
            while due < begin + seconds:
                time.sleep(max(0.0, due - time.perf_counter()))
                request = bodies[count % BODIES]
                count += 1
                peer.sendall(request)
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += peer.recv(4096)
                now = time.perf_counter()
                if b" 200 " in answer[:16]:
                    latencies.append(now - due)
                    sent_bytes[0] += len(request)
                else:
                    refused[0] += 1
                    time.sleep(0.05)
                due = due + every if rate else time.perf_counter()

    threads = [threading.Thread(target=one_connection, args=(n,)) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    latencies.sort()
    pick = lambda share: latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000 if latencies else 0.0  # noqa: E731
    result = {
        "events": len(latencies) * batch,
        "seconds": elapsed,
        "megabytes": sent_bytes[0] / 1e6,
        "p50": pick(0.5),
        "p99": pick(0.99),
        "worst": pick(1.0),
        "refused": refused[0],
    }
    print(json.dumps(result))


# The collector


@dataclass
class Usage:
    """CPU seconds and the largest resident size of a process, from when it is made."""

    pid: int
    peak: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._began, self._clock = self.cpu(), time.perf_counter()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS  # its own, and that of children it has waited for

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            with suppress(OSError):
                self.peak = max(self.peak, resident(self.pid))

    def stop(self) -> tuple[float, float]:
        """CPU seconds, and seconds."""
        self._over.set()
        self._watcher.join()
        return self.cpu() - self._began, time.perf_counter() - self._clock


def resident(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


@contextmanager
def collector(*, pinned: bool = True, group: "Group | None" = None) -> Iterator[tuple[int, int, Path]]:
    """Its pid, port and store, with a Ray that only exists as a directory."""
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
            if os.environ.get("BENCH_LOG"):
                print(home.joinpath("log").read_text())
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
    raise SystemExit("the collector did not come up")


class Group:
    """A cgroup with a CPU quota; version 2 with memory as well, version 1 where only that can be made."""

    def __init__(self, millicores: int, memory: int) -> None:
        self.note = ""
        quota = millicores * 100
        modern, older = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")
        if "cpu" in _text(modern / "cgroup.subtree_control").split():
            self._path = modern / f"rayhistory-bench-{os.getpid()}"
            self._path.mkdir()
            (self._path / "cpu.max").write_text(f"{quota} 100000")
            with suppress(OSError):
                (self._path / "memory.max").write_text(str(memory))
        else:
            self._path = older / f"rayhistory-bench-{os.getpid()}"
            self._path.mkdir()
            (self._path / "cpu.cfs_period_us").write_text("100000")
            (self._path / "cpu.cfs_quota_us").write_text(str(quota))
            self.note = "cgroup version 1: CPU is limited, memory only measured"

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        with suppress(OSError):
            self._path.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# The figures


def run_load(port: int, rate: float, batch: int, seconds: float) -> dict[str, float]:
    flags = [f"--port={port}", f"--rate={rate}", f"--batch={batch}", f"--seconds={seconds}"]
    child = subprocess.Popen(
        [sys.executable, __file__, "load", *flags],
        stdout=subprocess.PIPE,
    )
    os.sched_setaffinity(child.pid, {_CORES[-1]})
    output, _ = child.communicate()
    return dict(json.loads(output))


def measure(name: str, rate: float, *, batch: int = 1000, seconds: float, pinned: bool = True, **where: Any) -> None:
    with collector(pinned=pinned, **where) as (pid, port, store):
        usage = Usage(pid)
        figures = run_load(port, rate, batch, seconds)
        cpu, elapsed = usage.stop()
        stored = sum(path.stat().st_size for path in store.rglob("*.gz"))
    events = figures["events"]
    print(
        f"{name:<34}{events / figures['seconds']:>10,.0f}{cpu / elapsed:>8.1%}"
        f"{cpu / max(1, events) * 1e6:>9.1f}{figures['p50']:>8.1f}{figures['p99']:>8.1f}{figures['worst']:>8.1f}"
        f"{usage.peak / 2**20:>9.1f}{figures['megabytes']:>9.0f}{stored / 1e6:>8.0f}{figures['refused']:>6.0f}",
        flush=True,
    )


def disk_probe() -> str:
    """What one write of 128 KiB and its fdatasync take here without anybody's help: latencies stand on this."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=os.environ.get("BENCH_DIR")) as file:
        for _ in range(200):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 131072)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    taken.sort()
    return f"disk: fdatasync p50 {taken[100]:.1f} ms, p99 {taken[198]:.1f} ms; load average {os.getloadavg()[0]:.1f}"


def measure_idle(seconds: float) -> None:
    with collector() as (pid, _, _):
        usage = Usage(pid)
        time.sleep(seconds)
        cpu, elapsed = usage.stop()
    print(f"{'idle':<34}{0:>10}{cpu / elapsed:>8.1%}{'':>33}{usage.peak / 2**20:>9.1f}", flush=True)


def measure_limited(seconds: float) -> None:
    try:
        group = Group(200, 256 * 2**20)
    except OSError as error:
        print(f"200 millicores, 256 MiB: skipped, no cgroup can be made here ({error})")
        return
    if group.note:
        print(group.note)
    try:
        for name, rate in (("1k", 1000), ("5k", 5000), ("maximum", 0)):
            measure(f"200 millicores: {name}", rate, batch=100 if rate else 1000, seconds=seconds, group=group)
    finally:
        group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["load"], help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="", help="idle, rates, small, maximum, limited")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    wish = parser.parse_args()
    if wish.what == "load":
        load(wish.port, rate=wish.rate, batch=wish.batch, seconds=wish.seconds)
        return
    only = set(filter(None, wish.only.split(",")))
    print(f"{len(_CORES)} cores; {CONNECTIONS} connections; events of about 1.2 KB; {disk_probe()}")
    print(
        f"{'':<34}{'events/s':>10}{'CPU':>8}{'µs/event':>9}{'p50 ms':>8}{'p99 ms':>8}{'worst':>8}"
        f"{'peak MiB':>9}{'MB in':>9}{'stored':>8}{'503':>6}"
    )
    if not only or "idle" in only:
        measure_idle(wish.seconds)
    if not only or "rates" in only:
        for rate in (1000, 5000, 20_000):
            measure(f"{rate:,}/s, 100 per POST", rate, batch=100, seconds=wish.seconds)
    if not only or "small" in only:
        measure("1,000/s, 5 per POST", 1000, batch=5, seconds=wish.seconds)
        measure("5,000/s, 5 per POST", 5000, batch=5, seconds=wish.seconds)
    if not only or "maximum" in only:
        measure("maximum on one core", 0, seconds=wish.seconds)
        measure("maximum on all cores", 0, seconds=wish.seconds, pinned=False)
    if not only or "limited" in only:
        measure_limited(wish.seconds)


if __name__ == "__main__":
    main()
