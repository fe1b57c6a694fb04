"""Record a cluster of three nodes, each in a network namespace of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from rayhistory.sessions import SessionRef
from recorded.recorder import LiveResponse
from support import ray_nodes

_JOB = Path(__file__).parent / "jobs" / "nodes.py"
_PRINT_RESPONSES = """
import asyncio, sys
from recorded.recorder import encoded_responses
print(asyncio.run(encoded_responses(sys.argv[1])).decode())
"""
_SETTLE_S = 3.0


def three_nodes(directory: Path, python: str) -> None:
    """Record three nodes that run until the end of the cluster."""
    home = Path(tempfile.mkdtemp(prefix="rh"))  # short: Ray's sockets are below it
    try:
        with ray_nodes.pods(home) as cluster:
            _record(cluster, directory, python)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _record(cluster: dict[str, ray_nodes.Node], directory: Path, python: str) -> None:
    head = cluster["head"]
    collectors = [ray_nodes.start_collector(node, directory / "store") for node in cluster.values()]
    ray_nodes.start_ray(head, head)
    ray_nodes.wait_until(lambda: head.id, cluster, 120)
    for node in cluster.values():
        if node is not head:
            ray_nodes.start_ray(node, head)
    ray_nodes.wait_until(lambda: all(node.id for node in cluster.values()), cluster, 120)
    assert head.run(python, str(_JOB), f"{head.address}:6379").wait(300) == 0, head.log()
    _settle(cluster)
    responses = _responses(head)
    ref = SessionRef.checked("default", ray_nodes.CLUSTER, head.session)
    (directory / "live.json").write_bytes(msgspec.json.encode((ref, responses, [])))
    for collector in collectors:
        collector.send_signal(signal.SIGTERM)
    ray_nodes.wait_until(lambda: head.metric("last_dashboard_responses_stored") == 1, cluster)
    for node, collector in zip(cluster.values(), collectors, strict=True):
        node.kill(but=collector.pid)
    assert [collector.wait(60) for collector in collectors] == [0, 0, 0]


def _settle(cluster: dict[str, ray_nodes.Node]) -> None:
    """Wait until no event has arrived for some seconds."""
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < _SETTLE_S:
        received = sum(node.metric("events_received_total") for node in cluster.values())
        if received != seen:
            seen, since = received, time.monotonic()


def _responses(head: ray_nodes.Node) -> list[LiveResponse]:
    command = ["ip", "netns", "exec", head.namespace, sys.executable, "-c", _PRINT_RESPONSES, ray_nodes.DASHBOARD]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout, type=list[LiveResponse])
