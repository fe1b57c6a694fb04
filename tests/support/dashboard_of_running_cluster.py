"""A double of the dashboard of a running cluster, for `rayhistory snapshot`."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest


class RunningClusterDashboard(BaseHTTPRequestHandler):
    """A dashboard that requires a token, with large logs and more tasks than one list returns."""

    node = "ab" * 28
    token = "the-token"
    requests: ClassVar[list[str]] = []
    overrides: ClassVar[dict[str, bytes]] = {}
    """Bodies to send instead, by path."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.requests.append(self.path)
        if self.headers.get("x-ray-authorization") != f"Bearer {self.token}":
            self.respond(401, b"Unauthorized")
        elif parts.path in self.overrides:
            self.respond(200, self.overrides[parts.path])
        elif parts.path == "/api/version":
            self.respond(200, {"ray_version": "2.60.0", "session_name": "session_2026-11-15_19-18-08_055078_15551"})
        elif parts.path == "/api/jobs/":
            jobs: list[dict[str, Any]] = [
                    {"type": "DRIVER", "job_id": f"0{number}000000", "submission_id": None, "status": "RUNNING",
                     "entrypoint": "", "start_time": 1, "end_time": None, "metadata": {}, "runtime_env": {},
                     "driver_info": None, "message": None, "error_type": None} for number in (1, 2)]  # fmt: skip
            self.respond(200, jobs)
        elif parts.path == "/api/v0/tasks":
            (job,) = query.get("filter_values", ["01000000"])
            total = {"01000000": 12_000, "02000000": 5}[job] if "filter_values" in query else 12_005
            self.respond(200, self.listing([self.task(job, number) for number in range(5)], total))
        elif parts.path == "/api/v0/nodes":
            node = {"node_id": self.node, "node_ip": "127.0.0.1", "is_head_node": True, "state": "ALIVE",
                    "node_name": "n", "labels": {}, "resources_total": {}, "start_time_ms": 1794770288055}  # fmt: skip
            self.respond(200, self.listing([node], 1))
        elif parts.path == "/api/v0/logs":
            self.respond(200, {"data": {"result": {"raylet": ["raylet.out"], "internal": ["gone.log", "events/"]}}})
        elif parts.path == "/api/v0/logs/file" and query["filename"] == ["raylet.out"]:
            self.respond(200, b"0123456789" * 100)
        elif parts.path.startswith("/api/v0/"):
            self.respond(200, self.listing([], 0)) if "logs" not in parts.path else self.respond(500, b"no")
        else:
            self.respond(500, b"no")

    def listing(self, rows: list[Any], total: int) -> dict[str, Any]:
        truncated = min(total, 10_000)
        return {"data": {"result": {"result": rows, "total": total, "num_after_truncation": truncated,
                                    "num_filtered": len(rows), "partial_failure_warning": ""}}}  # fmt: skip

    def task(self, job: str, number: int) -> dict[str, Any]:
        return {"task_id": f"{number:032x}{'f' * 8}{job}", "attempt_number": 0, "job_id": job, "state": "RUNNING",
                "type": "NORMAL_TASK", "name": "work", "func_or_class_name": "work",
                "events": [{"state": "RUNNING", "created_ms": 1794770289000.0}]}  # fmt: skip

    def respond(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def running_cluster() -> Iterator[str]:
    RunningClusterDashboard.requests, RunningClusterDashboard.overrides = [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), RunningClusterDashboard)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
