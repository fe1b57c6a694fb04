"""The recording of a cluster of several nodes, each in a network of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import raynodes
from rayhistory.layout import SessionRef
from recorded.recorder import Answer

_JOB = Path(__file__).parent / "jobs" / "nodes.py"
_ASK = "import asyncio, sys; from recorded.recorder import ask; print(asyncio.run(ask(sys.argv[1])).decode())"
_QUIET = 3.0


def nodes(directory: Path, python: str) -> None:
    """Three nodes that run until the end."""
    home = Path(tempfile.mkdtemp(prefix="rh"))  # short: Ray's sockets are below it
    try:
        with raynodes.pods(home) as cluster:
            _record(cluster, directory, python)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _record(cluster: dict[str, raynodes.Node], directory: Path, python: str) -> None:
    head = cluster["head"]
    collectors = [raynodes.start_collector(node, directory / "store") for node in cluster.values()]
    raynodes.start_ray(head, head)
    raynodes.until(lambda: head.id, cluster, 120)
    for node in cluster.values():
        if node is not head:
            raynodes.start_ray(node, head)
    raynodes.until(lambda: all(node.id for node in cluster.values()), cluster, 120)
    assert head.run(python, str(_JOB), f"{head.address}:6379").wait(300) == 0, head.log()
    _settle(cluster)
    answers = _answers(head)
    ref = SessionRef.checked("default", raynodes.CLUSTER, head.session)
    (directory / "live.json").write_bytes(msgspec.json.encode((ref, answers, [])))
    for collector in collectors:
        collector.send_signal(signal.SIGTERM)
    raynodes.until(lambda: head.counted("last_answers_taken") == 1, cluster)
    for node, collector in zip(cluster.values(), collectors, strict=True):
        node.kill(but=collector.pid)
    assert [collector.wait(60) for collector in collectors] == [0, 0, 0]


def _settle(cluster: dict[str, raynodes.Node]) -> None:
    """Waits until no event has come for a while."""
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < _QUIET:
        received = sum(node.counted("events_received_total") for node in cluster.values())
        if received != seen:
            seen, since = received, time.monotonic()


def _answers(head: raynodes.Node) -> list[Answer]:
    command = ["ip", "netns", "exec", head.namespace, sys.executable, "-c", _ASK, raynodes.DASHBOARD]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return msgspec.json.decode(asked.stdout, type=list[Answer])
