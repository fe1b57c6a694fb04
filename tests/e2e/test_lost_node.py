"""A real cluster of three nodes in network namespaces, one of which is killed."""

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayhistory.metrics import samples
from support.ray_nodes import DASHBOARD, pods, start_collector, start_ray, wait_until
from support.server_process import running_server

JOB = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0, max_retries=0)
def tick(name):
    print("ran", name, time.time(), flush=True)

@ray.remote(num_cpus=0)
class Printer:
    def call(self, name):
        print("called", name, time.time(), flush=True)

nodes = ["head", "lost", "kept"]
actors = {node: Printer.options(resources={node: 0.1}).remote() for node in nodes}
for n in range(10000):
    for node in nodes:
        tick.options(name=f"tick-{node}-{n}", resources={node: 0.1}).remote(f"tick-{node}-{n}")
        actors[node].call.options(name=f"call-{node}-{n}").remote(f"call-{node}-{n}")
    time.sleep(0.5)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory with a short path, because Ray's sockets are below it."""
    directory = Path(tempfile.mkdtemp(prefix="rh"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_killed_worker_node_is_in_the_history(home: Path, tmp_path: Path) -> None:
    """Raylet, workers and collector are killed with their disk: data of ten seconds earlier is stored."""
    store = tmp_path / "store"
    with pods(home) as nodes:
        head, lost, kept = nodes.values()
        started = time.monotonic()
        collectors = {node.name: start_collector(node, store) for node in nodes.values()}
        start_ray(head, head)
        wait_until(lambda: head.id, nodes)
        for node in (lost, kept):
            start_ray(node, head)
        wait_until(lambda: lost.id and kept.id, nodes)
        (home / "job.py").write_text(JOB)
        head.run(sys.executable, str(home / "job.py"), f"{head.address}:6379")
        wait_until(lambda: len(lost.printed_before(time.time() - 11)) > 25, nodes, 90)
        wait_until(lambda: stored_samples(store, lost.id), nodes, 150)  # uploaded after seconds, then once a minute

        lost.kill()
        killed = time.time()
        printed = lost.printed_before(killed - 10)
        ids = {node.name: node.id for node in nodes.values()}
        session = head.session
        shutil.rmtree(lost.spool)
        shutil.rmtree(lost.temp)

        node_url = f"{DASHBOARD}/nodes/{ids['lost']}"
        wait_until(lambda: '"DEAD"' in head.get(node_url), nodes)
        assert 5 < head.metric("dashboard_polls_total") <= time.monotonic() - started + 1
        assert kept.metric("dashboard_polls_total") == 0

        for node in (head, kept):
            collectors[node.name].send_signal(signal.SIGTERM)
        wait_until(lambda: head.metric("last_dashboard_responses_stored") == 1, nodes)
        for node in (head, kept):
            node.kill(but=collectors[node.name].pid)
        assert [collectors[node.name].wait(60) for node in (head, kept)] == [0, 0]

    with running_server(store, tmp_path / "server") as server, httpx.Client(timeout=60) as client:
        check(client, f"{server}/s/default/three/{session}", ids, printed)


def stored_samples(store: Path, node_id: str) -> int:
    objects = store.glob(f"ray-history/metrics/*/*/*/{node_id}/*.zst")
    return max((len(samples.decode(path.read_bytes()).times) for path in objects), default=0)


def check(client: httpx.Client, url: str, ids: dict[str, str], printed: set[str]) -> None:
    def rows(query: str) -> list[dict[str, Any]]:
        response = client.get(f"{url}/api/v0/{query}").json()
        found: list[dict[str, Any]] = response["data"]["result"]["result"]
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
    # Only the worker itself reports start times.
    assert all(tasks[name]["start_time_ms"] for name in printed)

    files = client.get(f"{url}/api/v0/logs?node_id={ids['lost']}&glob=worker-*out").json()["data"]["result"]
    names = [name for group in files.values() for name in group]
    log = f"node_id={ids['lost']}&lines=-1&filename="
    text = "".join(client.get(f"{url}/api/v0/logs/file?{log}{name}").text for name in names)
    assert printed <= set(re.findall(r"(?:ran|called) (\S+) [0-9.]+\n", text))
    name = max(name for name in printed if name.startswith("tick"))
    of_task = client.get(f"{url}/api/v0/logs/file?task_id={tasks[name]['task_id']}&suffix=out")
    assert f"ran {name} " in of_task.text

    cpu = client.get(f"{url}/api/history/metrics?name=ray_node_cpu_utilization").json()["series"]
    assert {series["node"] for series in cpu} == set(ids.values())
    assert all(series["points"] for series in cpu if series["node"] == ids["lost"])
    assert all(len(series["points"]) > 3 for series in cpu if series["node"] != ids["lost"])
