"""What one node costs: CPU, memory, requests and bytes of a collector, from some minutes at a steady rate.

    python benchmarks/node_hour.py --seconds 180 --tasks 10 --lines 20

The store is a local double that counts requests. Figures per hour are extrapolated. Requests at the start and the end
of a session are reported separately, because a longer session has them once.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.collector_process import CollectorProcess, FakeRay, event
from support.store_servers.bucket_double import Double, serving
from support.store_servers.gcs_double import GcsBucket

_WARM_UP_S = 20.0
_EVENTS_PER_TASK = 4
_LINE = "2026-11-15 19:18:22,063 INFO worker.py:1234 -- step {number} loss 0.1234 took 0.5678 s\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the collector of one node costs per hour.")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--tasks", type=float, default=10.0, help="tasks per second, with four events each")
    parser.add_argument("--lines", type=float, default=20.0, help="log lines per second, in four files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rh") as home, serving(Double(GcsBucket, ("bucket",))) as double:
        measure(Path(home), double, arguments)


def measure(home: Path, double: Double, arguments: argparse.Namespace) -> None:
    ray = FakeRay(home)
    logs = ray.start() / "logs"
    target = {"RAYHISTORY_STORE": "gs://bucket", "STORAGE_BACKEND": "gcs", "STORAGE_EMULATOR_HOST": double.url}
    collector = CollectorProcess(home, "--role=Head", **target).start()
    stop = threading.Event()
    load = threading.Thread(target=produce, args=(collector, logs, arguments, stop))
    load.start()
    try:
        time.sleep(_WARM_UP_S)
        assert collector.process
        began, cpu, requests, stored = (
            time.monotonic(),
            cpu_s(collector.process.pid),
            len(double.requests),
            size(double),
        )
        time.sleep(arguments.seconds)
        scale = 3600 / (time.monotonic() - began)
        used, memory = cpu_s(collector.process.pid) - cpu, memory_mib(collector.process.pid)
        made = Counter(method for method, _ in double.requests[requests:])
        grown = size(double) - stored
    finally:
        stop.set()
        load.join()
    ray.stop()
    before = len(double.requests)
    collector.terminate(60)
    print(f"{arguments.tasks:g} tasks/s, {arguments.lines:g} log lines/s, {arguments.seconds:.0f} s")
    print(f"CPU {used * scale / 36:.2f} % of a core, memory {memory:.0f} MiB")
    hourly = {name: round(count * scale) for name, count in made.items()}
    print(f"per hour: {hourly}, {grown * scale / 1e6:.1f} MB")
    print(f"at the end of the session: {dict(Counter(method for method, _ in double.requests[before:]))}")


def produce(collector: CollectorProcess, logs: Path, arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Post events and append log lines once per second."""
    number = 0
    while not stop.wait(1.0):
        events = [event(number + each) for each in range(round(arguments.tasks * _EVENTS_PER_TASK))]
        number += len(events)
        if events:
            collector.post(events)
        for file in range(4):
            with (logs / f"worker-{file}.out").open("a") as output:
                output.writelines(_LINE.format(number=number + each) for each in range(round(arguments.lines / 4)))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def size(double: Double) -> int:
    with double.lock:
        return sum(len(each.data) for objects in double.buckets.values() for each in objects.values())


if __name__ == "__main__":
    main()
