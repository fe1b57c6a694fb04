"""A look at a running cluster, which no collector records, opens as the dashboard was."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

import kept
from kept import rayhistory
from plainsession import LISTS, LOG, PlainSession, base_of, differences, listed, opened

KEYS = {
    "tasks": ("task_id", "attempt_number"), "actors": ("actor_id",), "nodes": ("node_id",), "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_every_list_is_as_it_was(plain: PlainSession, tmp_path: Path, name: str) -> None:
    """What ran runs still: nothing is closed, because the cluster went on."""
    uri = f"/api/v0/{name}?{LISTS}"
    with opened(plain.directory / "store", tmp_path) as client:
        ours, live = listed(client, uri, *KEYS[name]), plain.rows(uri, *KEYS[name])
        assert ours
        assert not differences(ours, live, set())


def test_jobs_logs_and_events_are_there(plain: PlainSession, tmp_path: Path) -> None:
    assert "default/looked/" in plain.said
    with opened(plain.directory / "store", tmp_path) as client:
        base = base_of(client)
        assert client.get(f"{base}/api/jobs/").json() == plain.live["/api/jobs/"]
        assert client.get(f"{base}/api/version").json()["ray_version"] == plain.live["/api/version"]["ray_version"]
        (node,) = listed(client, f"/api/v0/nodes?{LISTS}", "node_id")
        file = client.get(f"{base}/api/v0/logs/file?node_id={node[0]}&filename={LOG}&lines=-1")
        assert file.text == plain.log
        events = client.get(f"{base}/events").json()["data"]["events"]["global"]
        assert "Started a ray job sample-job." in {event["message"] for event in events}
        timeline = client.get(f"{base}/api/v0/tasks/timeline").json()
        assert {"task::load_shard", "task:execute"} <= {span.get("cat") for span in timeline}
        assert client.get(f"{base}/api/history/gaps").json()["gaps"] == []


class Double(BaseHTTPRequestHandler):
    """A dashboard with too many tasks for one list, which wants a token, and whose logs are large."""

    node = "ab" * 28
    token = "the-token"
    asked: ClassVar[list[str]] = []
    odd: ClassVar[dict[str, bytes]] = {}
    """What is answered instead, by path."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.asked.append(self.path)
        if self.headers.get("x-ray-authorization") != f"Bearer {self.token}":
            self.answer(401, b"Unauthorized")
        elif parts.path in self.odd:
            self.answer(200, self.odd[parts.path])
        elif parts.path == "/api/version":
            self.answer(200, {"ray_version": "2.60.0", "session_name": "session_2026-11-15_19-18-08_055078_15551"})
        elif parts.path == "/api/jobs/":
            jobs = [{"type": "DRIVER", "job_id": f"0{number}000000", "submission_id": None, "status": "RUNNING",
                     "entrypoint": "", "start_time": 1, "end_time": None, "metadata": {}, "runtime_env": {},
                     "driver_info": None, "message": None, "error_type": None} for number in (1, 2)]  # fmt: skip
            self.answer(200, jobs)
        elif parts.path == "/api/v0/tasks":
            (job,) = query.get("filter_values", ["01000000"])
            total = {"01000000": 12_000, "02000000": 5}[job] if "filter_values" in query else 12_005
            self.answer(200, self.listing([self.task(job, number) for number in range(5)], total))
        elif parts.path == "/api/v0/nodes":
            node = {"node_id": self.node, "node_ip": "127.0.0.1", "is_head_node": True, "state": "ALIVE",
                    "node_name": "n", "labels": {}, "resources_total": {}, "start_time_ms": 1794770288055}  # fmt: skip
            self.answer(200, self.listing([node], 1))
        elif parts.path == "/api/v0/logs":
            self.answer(200, {"data": {"result": {"raylet": ["raylet.out"], "internal": ["gone.log", "events/"]}}})
        elif parts.path == "/api/v0/logs/file" and query["filename"] == ["raylet.out"]:
            self.answer(200, b"0123456789" * 100)
        elif parts.path.startswith("/api/v0/"):
            self.answer(200, self.listing([], 0)) if "logs" not in parts.path else self.answer(500, b"no")
        else:
            self.answer(500, b"no")

    def listing(self, rows: list[Any], total: int) -> dict[str, Any]:
        told = min(total, 10_000)
        return {"data": {"result": {"result": rows, "total": total, "num_after_truncation": told,
                                    "num_filtered": len(rows), "partial_failure_warning": ""}}}  # fmt: skip

    def task(self, job: str, number: int) -> dict[str, Any]:
        return {"task_id": f"{number:032x}{'f' * 8}{job}", "attempt_number": 0, "job_id": job, "state": "RUNNING",
                "type": "NORMAL_TASK", "name": "work", "func_or_class_name": "work",
                "events": [{"state": "RUNNING", "created_ms": 1794770289000.0}]}  # fmt: skip

    def answer(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def double() -> Iterator[str]:
    Double.asked, Double.odd = [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Double)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_list_that_was_cut_short_is_asked_for_job_by_job_and_what_is_missing_is_told(
    tmp_path: Path, double: str
) -> None:
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "snapshot", double, "--name", "looked", "--log-limit", "500", RAY_AUTH_TOKEN=Double.token)
    assert done.returncode == 0, done.stderr
    assert "10 tasks, 1 log files, 500 bytes" in done.stdout
    assert "only the first 500 were kept of log raylet.out" in done.stdout
    assert "not told: log gone.log of abababab…: status 500" in done.stdout
    with opened(tmp_path / "store", tmp_path / "cache") as client:
        base = base_of(client)
        tasks = listed(client, f"/api/v0/tasks?{LISTS}", *KEYS["tasks"]).values()
        assert len(tasks) == 10
        assert {task["state"] for task in tasks} == {"RUNNING"}
        gaps = [(gap["kind"], gap["detail"]) for gap in client.get(f"{base}/api/history/gaps").json()["gaps"]]
        assert gaps == [("list that the dashboard cut short", "/api/v0/tasks: 5 told, 2000 not")]
        file = client.get(f"{base}/api/v0/logs/file?node_id={Double.node}&filename=raylet.out&lines=-1")
        assert file.text == "0123456789" * 50


@pytest.mark.parametrize("path", ["/api/v0/tasks", "/api/v0/actors", "/api/jobs/", "/api/v0/logs"])
@pytest.mark.parametrize("odd", [b'{"data": {"result": "\xff"}}', b"[" * 100_000], ids=["no text", "depth"])
def test_an_answer_that_cannot_be_read_costs_nothing_else(tmp_path: Path, double: str, path: str, odd: bytes) -> None:
    place = kept.directory(tmp_path / "store")
    Double.odd = {path: odd}
    done = rayhistory(place, "snapshot", double, "--log-limit", "500", RAY_AUTH_TOKEN=Double.token)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"not told: {re.escape(path)}\S*: what it answers cannot be read", done.stdout)


@pytest.mark.parametrize("odd", [b'{"ray_version": "\xff"}', b"[" * 100_000], ids=["no text", "depth"])
def test_what_cannot_be_read_is_no_dashboard(tmp_path: Path, double: str, odd: bytes) -> None:
    Double.odd = {"/api/version": odd}
    done = rayhistory(kept.directory(tmp_path), "snapshot", double, RAY_AUTH_TOKEN=Double.token)
    assert done.returncode == 1
    assert "what answers there is not Ray's dashboard" in done.stderr


def test_logs_can_be_left_out(tmp_path: Path, double: str) -> None:
    place = kept.directory(tmp_path / "store")
    done = rayhistory(place, "snapshot", double, "--log-limit", "0", RAY_AUTH_TOKEN=Double.token)
    assert done.returncode == 0, done.stderr
    assert not [uri for uri in Double.asked if "/logs" in uri]


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9: no dashboard answers (no connection)"),
        ("nonsense", "nonsense: not the address of a dashboard"),
        ("ftp://x", "ftp://x: not the address of a dashboard"),
        ("DOUBLE", "it wants a token: set RAY_AUTH_TOKEN"),
    ],
)
def test_no_dashboard_is_one_line(tmp_path: Path, double: str, address: str, complaint: str) -> None:
    place = kept.directory(tmp_path)
    done = rayhistory(place, "snapshot", double if address == "DOUBLE" else address)
    assert done.returncode in {1, 2}
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert place.objects() == {}
