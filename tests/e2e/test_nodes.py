"""A real cluster of three nodes, each in a network of its own, of which one is lost without a word."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayhistory import rayenv
from recorded.served import serving

NODES = {"head": 1, "lost": 2, "kept": 3}
COLLECTOR = "http://127.0.0.1:8084"

JOB = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0, max_retries=0)
def tick(name):
    print("ran", name, time.time(), flush=True)

@ray.remote(num_cpus=0)
class Teller:
    def tell(self, name):
        print("told", name, time.time(), flush=True)

nodes = ["head", "lost", "kept"]
tellers = {node: Teller.options(resources={node: 0.1}).remote() for node in nodes}
for n in range(10000):
    for node in nodes:
        tick.options(name=f"tick-{node}-{n}", resources={node: 0.1}).remote(f"tick-{node}-{n}")
        tellers[node].tell.options(name=f"tell-{node}-{n}").remote(f"tell-{node}-{n}")
    time.sleep(0.5)
"""


class Node:
    """A network namespace stands for a pod: Ray and its collector share loopback and a disk, and nothing else."""

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

    def ask(self, url: str) -> str:
        """What a web server inside the namespace answers; nothing when it does not."""
        code = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=10).read().decode())"
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def counted(self, metric: str) -> float:
        found = re.search(rf"^rayhistory_collector_{metric} (\S+)$", self.ask(f"{COLLECTOR}/metrics"), re.MULTILINE)
        assert found, metric
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

    def printed_before(self, moment: float) -> set[str]:
        """Which tasks and actors of this node have printed their name until then, by what is on its disk."""
        text = "".join(path.read_text() for path in self.temp.glob("session_latest/logs/worker-*.out"))
        found = re.findall(r"(?:ran|told) (\S+) ([0-9.]+)\n", text)
        return {name for name, at in found if float(at) < moment}

    def log(self) -> str:
        return self._log.read_text()[-3000:]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def pods(home: Path) -> Iterator[dict[str, Node]]:
    """The head's namespace has the bridge: the machine's own network stays as it is."""
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
            pytest.skip(f"no network namespaces can be made here: {reason.decode().strip()}")
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
        for node in nodes.values():
            subprocess.run(["ip", "netns", "delete", node.namespace], check=False, capture_output=True)


def start_collector(node: Node, store: Path) -> subprocess.Popen[bytes]:
    return node.run(
        *(sys.executable, "-m", "rayhistory.collector.main", "--ray-cluster-name=three"),
        *("--role=Head" if node.name == "head" else "--role=Worker", f"--event-data-dir={node.spool}"),
        "--metrics-interval=2s",
        STORAGE_BACKEND="local",
        LOCAL_STORAGE_DIR=str(store),
        RAY_TMP_ROOT=str(node.temp),
    )


def start_ray(node: Node, head: Node) -> None:
    role = [f"--address={head.address}:6379"]
    if node is head:
        config = json.dumps(rayenv.system_config("2.60.0"))
        role = ["--head", "--port=6379", "--dashboard-host=127.0.0.1", f"--system-config={config}"]
    node.run(
        *("ray", "start", "--block", *role, "--disable-usage-stats", f"--node-ip-address={node.address}"),
        *(f"--temp-dir={node.temp}", "--num-cpus=1", "--object-store-memory=80000000"),
        f"--resources={json.dumps({node.name: 1000})}",
        **rayenv.export_environment(f"{COLLECTOR}/v1/events", "2.60.0"),
        RAY_AUTH_MODE="disabled",
        RAY_health_check_period_ms="1000",
        RAY_health_check_failure_threshold="3",
    )


def until(condition: Callable[[], object], nodes: dict[str, Node], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        logs = "\n".join(f"{node.name}:\n{node.log()}" for node in nodes.values())
        assert time.monotonic() < deadline, f"it did not happen in time\n{logs}"
        time.sleep(0.2)


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_a_worker_node_that_is_killed_hard_is_in_the_history(home: Path, tmp_path: Path) -> None:
    """Raylet, workers and collector die at once, with their disk: what was ten seconds before is there."""
    store = tmp_path / "store"
    with pods(home) as nodes:
        head, lost, kept = nodes.values()
        began = time.monotonic()
        collectors = {node.name: start_collector(node, store) for node in nodes.values()}
        start_ray(head, head)
        until(lambda: head.id, nodes)
        for node in (lost, kept):
            start_ray(node, head)
        until(lambda: lost.id and kept.id, nodes)
        (home / "job.py").write_text(JOB)
        head.run(sys.executable, str(home / "job.py"), f"{head.address}:6379")
        until(lambda: len(lost.printed_before(time.time() - 11)) > 25, nodes, 90)

        lost.kill()
        killed = time.time()
        printed = lost.printed_before(killed - 10)
        ids = {node.name: node.id for node in nodes.values()}
        session = head.session
        shutil.rmtree(lost.spool)
        shutil.rmtree(lost.temp)

        alive = f"http://127.0.0.1:8265/nodes/{ids['lost']}"
        until(lambda: '"DEAD"' in head.ask(alive), nodes)
        assert 5 < head.counted("snapshot_requests_total") <= time.monotonic() - began + 1
        assert kept.counted("snapshot_requests_total") == 0

        for node in (head, kept):
            collectors[node.name].send_signal(signal.SIGTERM)
        until(lambda: head.counted("last_answers_taken") == 1, nodes)
        for node in (head, kept):
            node.kill(but=collectors[node.name].pid)
        assert [collectors[node.name].wait(60) for node in (head, kept)] == [0, 0]

    with serving(store, tmp_path / "server") as server, httpx.Client(timeout=60) as client:
        at = f"{server}/s/default/three/{session}"
        check(client, at, ids, printed)


def check(client: httpx.Client, at: str, ids: dict[str, str], printed: set[str]) -> None:
    def rows(what: str) -> list[dict[str, Any]]:
        answer = client.get(f"{at}/api/v0/{what}").json()
        found: list[dict[str, Any]] = answer["data"]["result"]["result"]
        return found

    assert len(printed) > 20
    states = {node["node_id"]: node for node in rows("nodes?detail=1")}
    assert set(states) == set(ids.values())
    assert states[ids["lost"]]["state"] == "DEAD"

    tasks = {
        task["name"]: task
        for task in rows(
            f"tasks?detail=1&limit=10000&filter_keys=node_id&filter_predicates=%3D&filter_values={ids['lost']}"
        )
    }
    assert printed <= set(tasks)
    assert {tasks[name]["state"] for name in printed} == {"FINISHED"}
    # This one only the worker itself can have told.
    assert all(tasks[name]["start_time_ms"] for name in printed)

    files = client.get(f"{at}/api/v0/logs?node_id={ids['lost']}&glob=worker-*out").json()["data"]["result"]
    names = [name for group in files.values() for name in group]
    query = f"node_id={ids['lost']}&lines=-1&filename="
    text = "".join(client.get(f"{at}/api/v0/logs/file?{query}{name}").text for name in names)
    assert printed <= set(re.findall(r"(?:ran|told) (\S+) [0-9.]+\n", text))
    name = max(name for name in printed if name.startswith("tick"))
    of_task = client.get(f"{at}/api/v0/logs/file?task_id={tasks[name]['task_id']}&suffix=out")
    assert f"ran {name} " in of_task.text

    cpu = client.get(f"{at}/api/history/metrics?name=ray_node_cpu_utilization").json()["series"]
    assert {series["node"] for series in cpu} == set(ids.values())
    assert all(len(series["points"]) > 3 for series in cpu)
