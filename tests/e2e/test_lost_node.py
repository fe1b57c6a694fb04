"""A real cluster of three nodes, each in a network of its own, of which one is lost without a word."""

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

from raynodes import DASHBOARD, pods, start_collector, start_ray, until
from recorded.served import serving

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

        alive = f"{DASHBOARD}/nodes/{ids['lost']}"
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
