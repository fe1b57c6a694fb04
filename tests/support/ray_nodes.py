"""A real Ray cluster of three nodes on one machine, each in a network namespace in place of a pod."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayhistory import ray_env

NODES = {"head": 1, "lost": 2, "kept": 3}
CLUSTER = "three"
COLLECTOR = "http://127.0.0.1:8084"
DASHBOARD = "http://127.0.0.1:8265"


class Node:
    """A node: Ray and its collector share the loopback device and the disk of a network namespace."""

    def __init__(self, home: Path, name: str, cluster: str) -> None:
        self.name = name
        self.namespace = f"{cluster}{name}"
        self.address = f"10.213.7.{NODES[name]}"
        self.temp = home / name
        self.spool = home / f"{name}-spool"
        self._log = home / f"{name}.log"

    def run(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command],
                env={**os.environ, **environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def get(self, url: str) -> str:
        """Return the response of a server inside the namespace; empty if there is none."""
        code = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=10).read().decode())"
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def metric(self, name: str) -> float:
        found = re.search(rf"^rayhistory_collector_{name} (\S+)$", self.get(f"{COLLECTOR}/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def pids(self) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self, but: int = 0) -> None:
        while pids := [pid for pid in self.pids() if pid != but]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @property
    def id(self) -> str:
        found = list(self.temp.glob("session_*/metrics_export_port_*"))
        return found[0].name.rpartition("_")[2] if found else ""

    @property
    def session(self) -> str:
        return (self.temp / "session_latest").resolve().name

    def printed_before(self, timestamp: float) -> set[str]:
        """Return the tasks that printed their name before `timestamp`, from the log files on the node's disk."""
        text = "".join(path.read_text() for path in self.temp.glob("session_latest/logs/worker-*.out"))
        found = re.findall(r"(?:ran|called) (\S+) ([0-9.]+)\n", text)
        return {name for name, at in found if float(at) < timestamp}

    def log(self) -> str:
        return self._log.read_text()[-3000:]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def pods(home: Path) -> Iterator[dict[str, Node]]:
    """Make the namespaces; the bridge is in the head's, so that the network of the machine does not change."""
    cluster = f"rh{secrets.token_hex(2)}"
    nodes = {name: Node(home, name, cluster) for name in NODES}
    head = nodes["head"].namespace
    try:
        try:
            for node in nodes.values():
                ip("netns", "add", node.namespace)
                ip("-n", node.namespace, "link", "set", "lo", "up")
            ip("-n", head, "link", "add", "bridge", "type", "bridge")
            ip("-n", head, "link", "set", "bridge", "up")
            ip("-n", head, "addr", "add", f"{nodes['head'].address}/24", "dev", "bridge")
            for node in (nodes["lost"], nodes["kept"]):
                peer = ("peer", "name", node.name, "netns", head)
                ip("-n", node.namespace, "link", "add", "eth0", "type", "veth", *peer)
                ip("-n", head, "link", "set", node.name, "master", "bridge", "up")
                ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
                ip("-n", node.namespace, "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", b"") or str(error).encode()
            pytest.skip(f"network namespaces cannot be created here: {reason.decode().strip()}")
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
        for node in nodes.values():
            subprocess.run(["ip", "netns", "delete", node.namespace], check=False, capture_output=True)


def start_collector(node: Node, store: Path) -> subprocess.Popen[bytes]:
    return node.run(
        *(sys.executable, "-m", "rayhistory.collector.main", f"--ray-cluster-name={CLUSTER}"),
        *("--role=Head" if node.name == "head" else "--role=Worker", f"--event-data-dir={node.spool}"),
        "--metrics-interval=2s",
        STORAGE_BACKEND="local",
        LOCAL_STORAGE_DIR=str(store),
        RAY_TMP_ROOT=str(node.temp),
    )


def start_ray(node: Node, head: Node) -> None:
    role = [f"--address={head.address}:6379"]
    if node is head:
        config = json.dumps(ray_env.system_config("2.60.0"))
        role = ["--head", "--port=6379", "--dashboard-host=127.0.0.1", f"--system-config={config}"]
    node.run(
        *("ray", "start", "--block", *role, "--disable-usage-stats", f"--node-ip-address={node.address}"),
        *(f"--temp-dir={node.temp}", "--num-cpus=1", "--object-store-memory=80000000"),
        f"--resources={json.dumps({node.name: 1000})}",
        **ray_env.export_environment(f"{COLLECTOR}/v1/events", "2.60.0"),
        RAY_AUTH_MODE="disabled",
        RAY_health_check_period_ms="1000",
        RAY_health_check_failure_threshold="3",
    )


def wait_until(condition: Callable[[], object], nodes: dict[str, Node], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        logs = "\n".join(f"{node.name}:\n{node.log()}" for node in nodes.values())
        assert time.monotonic() < deadline, f"timed out\n{logs}"
        time.sleep(0.2)
