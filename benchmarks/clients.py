"""Time Ray's own command line on a large stored session.

python benchmarks/clients.py [TASKS] [--rounds 3] [--store DIRECTORY]

Each command also runs against a server that replays recorded responses: that time is spent in the client alone.
"""

import argparse
import http.server
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
from query import Server, prepared

RAY = Path(sys.executable).parent / "ray"
COMMANDS = {
    "ray list tasks --limit 10000 --detail": ["list", "tasks", "--limit", "10000", "--detail"],
    "… --format json": ["list", "tasks", "--limit", "10000", "--detail", "--format", "json"],
    "ray list tasks --limit 10000": ["list", "tasks", "--limit", "10000"],
    "ray summary tasks": ["summary", "tasks"],
    "ray job list": ["job", "list"],
}


class ReplayServer(http.server.ThreadingHTTPServer):
    """Forwards the first request for a path, and replays its response to later ones."""

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _ReplayHandler)
        self.upstream = address
        self.recorded: dict[str, tuple[int, str, bytes]] = {}
        self.seconds: dict[str, float] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _ReplayHandler(http.server.BaseHTTPRequestHandler):
    server: ReplayServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path not in self.server.recorded:
            start_time = time.perf_counter()
            response = httpx.get(self.server.upstream + self.path, timeout=120, trust_env=False)
            self.server.recorded[self.path] = response.status_code, response.headers["Content-Type"], response.content
            self.server.seconds[self.path] = time.perf_counter() - start_time
        status, kind, body = self.server.recorded[self.path]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        server.json(ref, "api/v0/cluster_metadata")
        address = server.address.rstrip("/")
        print(f"{arguments.tasks:,} tasks; seconds, best of {arguments.rounds}")
        print(f"{'':40} {'first':>7} {'repeat':>7} {'client alone':>13} {'server, first':>14}")
        for name, command in COMMANDS.items():
            replay = ReplayServer(address)
            first = timed(replay.address + ref.url, command)  # records the responses
            alone = min(timed(replay.address + ref.url, command) for _ in range(arguments.rounds))
            repeated = min(timed(address + ref.url, command) for _ in range(arguments.rounds))
            print(
                f"{name:40} {first:7.2f} {repeated:7.2f} {alone:13.2f} {sum(replay.seconds.values()):14.2f}", flush=True
            )
            replay.shutdown()


def timed(address: str, command: list[str]) -> float:
    start_time = time.perf_counter()
    subprocess.run([RAY, *command, "--address", address.rstrip("/")], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start_time


if __name__ == "__main__":
    main()
