"""A double of the head's dashboard that records its requests."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rayhistory.collector.dashboard.schedule import ACTORS, JOBS, NODES

SESSION = "session_2026-11-15_19-18-08_055078_15551"
VERSION = {"ray_version": "2.60.0", "session_name": SESSION}


class FakeDashboard:
    """A web server that responds like Ray's dashboard; `responses` maps URIs to JSON bodies."""

    def __init__(self) -> None:
        self.responses: dict[str, Any] = {"/api/version": VERSION, JOBS: [], NODES: {}, ACTORS: {}}
        self.requests: list[str] = []
        self.max_concurrent = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def count(self, uri: str) -> int:
        return self.requests.count(uri)


@contextmanager
def run_dashboard(token: str = "") -> Iterator[FakeDashboard]:
    """Run a dashboard. If a token is given, requests without this token are refused."""
    dashboard = FakeDashboard()
    active_threads: set[int] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            active_threads.add(threading.get_ident())
            dashboard.max_concurrent = max(dashboard.max_concurrent, len(active_threads))
            time.sleep(0.02)
            dashboard.requests.append(self.path)
            dashboard.headers.append(dict(self.headers))
            uri = self.path.replace("?nocache=1", "").replace("&nocache=1", "")
            body = json.dumps(dashboard.responses.get(uri)).encode()
            denied = token and self.headers.get("x-ray-authorization") != f"Bearer {token}"
            self.send_response(401 if denied else 200 if uri in dashboard.responses else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            active_threads.discard(threading.get_ident())
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    dashboard.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield dashboard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
