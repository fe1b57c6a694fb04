"""Record a case on two nodes, each in a network namespace of its own. One of them can be lost."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from failures.cases import Case
from rayhistory.sessions import SessionRef
from support import ray_nodes

_JOBS = Path(__file__).parent / "jobs"
_JOB = "planted-job"
_STARTED_MESSAGE = "everything is under way"
_TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
_SETTLE_S = 3.0
_RAY = str(Path(sys.executable).with_name("ray"))


def record_on_two_nodes(case: Case, directory: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="rh"))  # short: Ray's sockets are below it
    try:
        with ray_nodes.pods(home) as pods:
            nodes = {name: pods[name] for name in ("head", "lost")}
            _record(case, nodes, directory)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _record(case: Case, nodes: dict[str, ray_nodes.Node], directory: Path) -> None:
    head, lost = nodes["head"], nodes["lost"]
    collectors = {name: ray_nodes.start_collector(node, directory / "store") for name, node in nodes.items()}
    ray_nodes.start_ray(head, head)
    ray_nodes.wait_until(lambda: head.id, nodes, 120)
    os.environ["SLOW_NODE"] = "1"  # for the workers of the other node
    ray_nodes.start_ray(lost, head)
    ray_nodes.wait_until(lambda: lost.id, nodes, 120)
    ref = SessionRef.checked("default", ray_nodes.CLUSTER, head.session)
    ray_nodes.wait_until(lambda: head.get(f"{ray_nodes.DASHBOARD}/api/version"), nodes, 60)
    _submit(case, head)
    is_lost = case.ends in ("kill_node", "preempt_node")
    if is_lost:
        ray_nodes.wait_until(lambda: _STARTED_MESSAGE in _job(head, "/logs"), nodes, 90)
        if case.ends == "preempt_node":
            _announce_preemption(lost, head)
        time.sleep(4)
        lost.kill()
    ray_nodes.wait_until(lambda: any(f'"status": "{status}"' in _job(head) for status in _TERMINAL), nodes, 150)
    _settle([head] if is_lost else [head, lost])
    (directory / "session.json").write_bytes(msgspec.json.encode(ref))
    kept = [name for name in nodes if not (is_lost and name == "lost")]
    for name in kept:
        collectors[name].send_signal(signal.SIGTERM)
    ray_nodes.wait_until(lambda: head.metric("last_dashboard_responses_stored") == 1, nodes)
    for name in kept:
        nodes[name].kill(but=collectors[name].pid)
    assert all(collectors[name].wait(60) == 0 for name in kept)


def _submit(case: Case, head: ray_nodes.Node) -> None:
    command = (_RAY, "job", "submit", "--no-wait", f"--address={ray_nodes.DASHBOARD}", f"--submission-id={_JOB}", "--",
               sys.executable, str(_JOBS / f"{case.script}.py"), case.name)  # fmt: skip
    assert head.run(*command, RAY_AUTH_MODE="disabled").wait(90) == 0, head.log()


def _announce_preemption(node: ray_nodes.Node, head: ray_nodes.Node) -> None:
    """Tell Ray what a cloud tells an autoscaler: that it will take the node back in two seconds."""
    command = (_RAY, "drain-node", f"--address={head.address}:6379", f"--node-id={node.id}",
               "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot instance interrupted",
               "--deadline-remaining-seconds=2")  # fmt: skip
    assert head.run(*command, RAY_AUTH_MODE="disabled").wait(60) == 0, head.log()


def _job(head: ray_nodes.Node, below: str = "") -> str:
    text = head.get(f"{ray_nodes.DASHBOARD}/api/jobs/{_JOB}{below}")
    return json.dumps(json.loads(text)) if text.strip() else ""


def _settle(nodes: list[ray_nodes.Node]) -> None:
    """Wait until no event has arrived for some seconds."""
    seen, since = -1.0, time.monotonic()
    while time.monotonic() - since < _SETTLE_S:
        received = sum(node.metric("events_received_total") for node in nodes)
        if received != seen:
            seen, since = received, time.monotonic()
