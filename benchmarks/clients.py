"""What a person waits for at a terminal: Ray's own command line on a large dead session.

python benchmarks/clients.py [TASKS] [--rounds 3] [--store DIRECTORY]

Beside each command, what of its time the client takes whoever answers: the same command, at a server that only repeats
what the real one said.
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


class Parrot(http.server.ThreadingHTTPServer):
    """Passes a request on the first time, and repeats the answer ever after."""

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Repeat)
        self.behind = address
        self.heard: dict[str, tuple[int, str, bytes]] = {}
        self.taken: dict[str, float] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Repeat(http.server.BaseHTTPRequestHandler):
    server: Parrot
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path not in self.server.heard:
            began = time.perf_counter()
            answer = httpx.get(self.server.behind + self.path, timeout=120, trust_env=False)
            self.server.heard[self.path] = answer.status_code, answer.headers["Content-Type"], answer.content
            self.server.taken[self.path] = time.perf_counter() - began
        status, kind, body = self.server.heard[self.path]
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
    parser.add_argument("--store", help="a directory that keeps generated sessions")
    arguments = parser.parse_args()
    with prepared(arguments.tasks, arguments.store) as (ref, environment), Server(environment) as server:
        server.json(ref, "api/v0/cluster_metadata")
        address = server.address.rstrip("/")
        print(f"{arguments.tasks:,} tasks; seconds, best of {arguments.rounds}")
        print(f"{'':40} {'first':>7} {'again':>7} {'client alone':>13} {'server, first':>14}")
        for name, command in COMMANDS.items():
            parrot = Parrot(address)
            first = timed(parrot.address + ref.url, command)  # through the parrot, which so learns the answers
            alone = min(timed(parrot.address + ref.url, command) for _ in range(arguments.rounds))
            again = min(timed(address + ref.url, command) for _ in range(arguments.rounds))
            print(f"{name:40} {first:7.2f} {again:7.2f} {alone:13.2f} {sum(parrot.taken.values()):14.2f}", flush=True)
            parrot.shutdown()


def timed(address: str, command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([RAY, *command, "--address", address.rstrip("/")], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
