"""Record a store and a spool with an installed release, as a fixture for the releases after it.

    PYTHONPATH=<checkout of the release>/src python tools/record_store.py tests/data/store-0.1.0

Four sessions are collected from real Ray 2.60 data by real collector processes: one that ends cleanly, one of a RayJob,
one in the layout of KubeRay v1.6, and one whose collector is killed while the store refuses its events. The store, the
spool that the killed collector leaves, and the responses that the release's own server gives about the store are
written to the directory.
"""

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data" / "ray-2.60"
HOME = Path("/tmp/rh-store")  # noqa: S108 - sockets need a short path, and it is part of what is recorded
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
RECORDED = "session_2026-11-15_19-18-08_055078_15551"
OWNED = "session_2026-11-15_20-00-00_000000_20000"
OLD_LAYOUT = "session_2026-11-15_20-30-00_000000_20500"
VANISHED = "session_2026-11-15_21-00-00_000000_21000"
WORKER_LOG = "worker-8726a3b93832c9a8db736d7b413e1af6a504cd6641947e9a7f66a25c-01000000-16221.out"
ENDPOINTS = {
    "/api/version": "version",
    "/api/jobs/": "jobs_after_snap",
    "/nodes?view=summary": "nodes_summary",
    "/api/v0/placement_groups?detail=1&limit=10000": "v0_placement_groups_detail",
    "/api/v0/workers?detail=1&limit=10000": "v0_workers_detail",
    "/api/v0/nodes?detail=1&limit=10000": "v0_nodes_detail",
}
STATE_LISTS = ("tasks", "actors", "nodes", "jobs", "workers", "placement_groups")
TABLES = ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups", "profile_events", "actor_transitions",
          "cluster_events", "platform_events", "snapshots", "gaps")  # fmt: skip
METRIC = "ray_node_cpu_utilization"


def main() -> None:
    target = Path(sys.argv[1])
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    with serve_ray() as port:
        record_ended(port)
        record_short(port, OWNED, "--owner-kind=rayjob", "--owner-name=nightly")
        record_short(port, OLD_LAYOUT, "--storage-layout=v1.6")
        record_vanished(port)
    for verb in ("index", "pin"):
        subprocess.run(command("rayhistory.cli.main", verb, f"default/test/{RECORDED}"), env=environment(), check=True)
    pack(target / "store.tar.gz", HOME / "store", "store")
    pack(target / "spool.tar.gz", HOME / "spool", "spool")
    shutil.rmtree(HOME / "store")
    with tarfile.open(target / "store.tar.gz") as archive:
        archive.extractall(HOME, filter="data")
    with gzip.GzipFile(target / "responses.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(responses(), indent=1, sort_keys=True).encode())
    shutil.rmtree(HOME)


def record_ended(port: int) -> None:
    """Collect a session with everything that a collector stores, and end it."""
    directory, raylet = start_ray(RECORDED, port)
    with collector("--role=Head", "--log-interval=1s", "--event-rotation-interval=4s", port=port) as (process, url):
        lines = events(RECORDED)
        for start in range(0, len(lines), 50):
            post(url, b"[" + b",".join(lines[start : start + 50]) + b"]")
            with (directory / "logs" / WORKER_LOG).open("a") as log:
                log.write("".join(f"line {start + n}: step finished\n" for n in range(50)))
            time.sleep(2.5)
        post(url, b"not JSON")
        wait_for(lambda: len(list((HOME / "store").rglob("*.msgpack.zst"))) > 0, 40)
        time.sleep(8)
        raylet.close()
        end(process)
    shutil.rmtree(directory)


def record_short(port: int, session: str, *flags: str) -> None:
    """Collect a session of some seconds."""
    directory, raylet = start_ray(session, port)
    with collector("--role=Head", *flags, port=port) as (process, url):
        post(url, b"[" + b",".join(events(session)[:16]) + b"]")
        wait_for(lambda: any((HOME / "store").rglob(f"{session}/start.json")), 20)
        raylet.close()
        end(process)
    shutil.rmtree(directory)


def record_vanished(port: int) -> None:
    """Collect a session whose events stay in the spool when the collector is killed."""
    directory, raylet = start_ray(VANISHED, port)
    blocked_prefix = HOME / "store" / "cluster-history/raycluster/default/test" / VANISHED
    with collector("--role=Head", "--log-interval=1m", "--event-rotation-interval=4s", port=port) as (process, url):
        lines = events(VANISHED)
        post(url, b"[" + b",".join(lines[:50]) + b"]")
        ledger = HOME / "spool/test_default/counts.json"
        wait_for(lambda: json.loads(ledger.read_text())["sessions"].get(VANISHED, {}).get("stored") == 50, 20)
        shutil.move(blocked_prefix, HOME / "aside")
        blocked_prefix.write_text("")
        post(url, b"[" + b",".join(lines[50:120]) + b"]")
        time.sleep(5)
        post(url, b'[{"eventType": 7}, "not an event"]')
        wait_for(lambda: json.loads(ledger.read_text()).get("bad") == 3, 30)
        post(url, b"[" + b",".join(lines[120:]) + b"]")
        process.kill()
        process.wait()
    raylet.close()
    blocked_prefix.unlink()
    shutil.move(HOME / "aside", blocked_prefix)
    shutil.rmtree(directory)


def responses() -> dict[str, Any]:
    """Return the responses of the release's server about the recorded store."""
    found: dict[str, Any] = {}
    port = free_port()
    server = subprocess.Popen(
        command("rayhistory.server.main", f"--port={port}", "--host=127.0.0.1", "--vanished-after=1s"),
        env=environment(),
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: reachable(f"{url}/readyz"), 20)
        found["sessions"] = get(f"{url}/api/history/sessions")
        for entry in found["sessions"]["sessions"]:
            base = f"{url}/s/default/test/{entry['session']}"
            names = get(f"{base}/api/history/metrics")
            found[entry["session"]] = {
                "state": {
                    name: get(f"{base}/api/v0/{name}?detail=1&limit=10000")["data"]["result"]["result"]
                    for name in STATE_LISTS
                },
                "tables": {name: get(f"{base}/api/history/rows/{name}?limit=10000")["rows"] for name in TABLES},
                "logs": get(f"{base}/api/v0/logs?node_id={NODE}")["data"]["result"],
                "worker_log": text(f"{base}/api/v0/logs/file?node_id={NODE}&filename={WORKER_LOG}&lines=-1"),
                "metrics": names,
                "points": get(f"{base}/api/history/metrics?name={METRIC}"),
            }
    finally:
        server.terminate()
        server.wait()
    return found


@contextmanager
def collector(*flags: str, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    events_port = free_port()
    process = subprocess.Popen(
        command(
            *("rayhistory.collector.main", f"--events-port={events_port}", "--events-host=127.0.0.1"),
            *("--ray-cluster-name=test", f"--event-data-dir={HOME / 'spool'}", *flags),
        ),
        env={
            **environment(),
            "RAY_TMP_ROOT": str(HOME / "ray"),
            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{port}",
            "RAYHISTORY_METRICS_INTERVAL": "1s",
        },
    )
    try:
        wait_for(lambda: reachable(f"http://127.0.0.1:{events_port}/readyz"), 20)
        yield process, f"http://127.0.0.1:{events_port}/v1/events"
    finally:
        process.kill()
        process.wait()


def start_ray(session: str, port: int) -> tuple[Path, socket.socket]:
    """Make what a running Ray shows on disk: a port file, logs, and a raylet that listens."""
    directory = HOME / "ray" / session
    for name in ("sockets", "logs/events", "logs/export_events"):
        (directory / name).mkdir(parents=True)
    (directory / f"metrics_export_port_{NODE}").write_text(str(port))
    (directory / "logs" / "raylet.out").write_text("raylet started\n")
    (directory / "logs" / WORKER_LOG).write_text(":job_id:01000000\n")
    (directory / "logs/events/event_RAYLET.log").write_text(json.dumps({
        "source_type": "RAYLET", "event_id": "ab" * 18, "host_name": "vm", "pid": 16000, "label": "RAYLET_STARTED",
        "message": "raylet started", "severity": "WARNING", "timestamp": 1794770303, "custom_fields": {"node_id": NODE},
    }) + "\n")  # fmt: skip
    (directory / "logs/export_events/event_EXPORT_SUBMISSION_JOB.log").write_text(json.dumps({
        "event_id": "cd" * 9, "timestamp": 1794770303, "source_type": "EXPORT_SUBMISSION_JOB",
        "event_data": {"submission_job_id": "raysubmit_exported", "status": "SUCCEEDED", "entrypoint": "python job.py",
                       "start_time": 1794770310000, "end_time": 1794770320000, "metadata": {},
                       "runtime_env_json": "{}"},
    }) + "\n")  # fmt: skip
    raylet = socket.socket(socket.AF_UNIX)
    raylet.bind(str(directory / "sockets" / "raylet"))
    raylet.listen()
    latest = HOME / "ray" / "session_latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(directory)
    return directory, raylet


@contextmanager
def serve_ray() -> Iterator[int]:
    """Serve the node's metrics, and the recorded dashboard responses with the name of the current session."""
    bodies = {uri: (DATA / "endpoints" / f"{name}.json").read_bytes() for uri, name in ENDPOINTS.items()}
    metrics = gzip.decompress((DATA / "metrics.txt.gz").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            uri = self.path.replace("?nocache=1", "").replace("&nocache=1", "")
            body = metrics if uri == "/metrics" else bodies.get(uri)
            if body is None:
                self.send_error(404)
                return
            session = (HOME / "ray" / "session_latest").resolve().name
            body = body.replace(RECORDED.encode(), session.encode())
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def events(session: str) -> list[bytes]:
    return (DATA / "events.jsonl").read_bytes().replace(RECORDED.encode(), session.encode()).splitlines()


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; raise SystemExit(main())", *arguments]


def environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY", "STORAGE"))},
        "STORAGE_BACKEND": "local",
        "LOCAL_STORAGE_DIR": str(HOME / "store"),
        "XDG_CACHE_HOME": str(HOME / "cache"),
    }


def pack(path: Path, directory: Path, name: str) -> None:
    """Write an archive with exact modification times, and without names and ids of users."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.add(directory, name, filter=anonymous)


def post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:  # noqa: S310
        if response.status != 200:
            raise SystemExit(f"POST {url}: {response.status}")


def get(url: str) -> Any:
    return json.loads(text(url))


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310
        return str(response.read().decode())


def reachable(url: str) -> bool:
    try:
        text(url)
    except OSError:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    if process.wait(40) != 0:
        raise SystemExit(f"collector exited with status {process.returncode}")


def wait_for(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timeout after {seconds} s")
        time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()
