"""Measure all figures of docs/reference/performance.md on this machine, and write them there.

python benchmarks/performance.py [--largest 1000000] [--sessions 50] [--store DIRECTORY]
"""

import argparse
import asyncio
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from collector import stolen
from fold import COLUMNS, Fold, measure
from generate import session_ref
from query import Server

from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from support.store_servers.seaweed import KEY, SECRET, seaweedfs

DOCS = Path(__file__).parents[1] / "docs/reference"
HERE = Path(__file__).parent
SIZES = (1_000, 10_000, 50_000, 100_000, 1_000_000)
DEFAULT_VARIANT = "gzip, 1 GiB"
FIRST_PAGE = "api/v0/tasks?limit=100"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run all benchmarks and write docs/reference/performance.md.")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="tasks of the largest session")
    parser.add_argument("--sessions", type=int, default=50, help="number of sessions that are visited in turn")
    parser.add_argument("--store", type=Path, help="directory for generated sessions, reused by later runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        root = arguments.store or Path(directory)
        low_memory = measure(root, arguments.largest, "512Mi")
        plain = measure(root, arguments.largest, compressed=False)
        compressed = [measure(root, tasks) for tasks in SIZES if tasks <= arguments.largest]
        folds = {DEFAULT_VARIANT: compressed, "gzip, 512 MiB": [low_memory], "plain, 1 GiB": [plain]}
        largest, store = str(arguments.largest), str(root / "gzip")
        text = page(
            folds,
            opening_times(root / "gzip", arguments.largest),
            {
                "First opens": output("first_open.py"),
                "Requests": output("query.py", largest, "--store", store),
                "Points in time": output("as_of.py", largest, "--store", store),
                "Visitors": output("visitors.py", largest, "--store", store),
                "Ray's command line": output("clients.py", largest, "--rounds", "1", "--store", store),
                "SQL": output("sql.py", "100000", "--sessions", "20"),
                "Diagnosis": "\n".join(
                    output("diagnosis.py", *options)
                    for options in ((), ("--tasks", "50000", "--message-bytes", "100000"))
                ),
                "Library": output("library.py", largest, "--folds", "20"),
                "Log search": output("search.py", "--megabytes", "1000"),
                "Runs": output("runs.py"),
                "Many sessions": output(
                    "sessions.py", str(arguments.sessions), "100000", "--store", str(root / "sessions")
                ),
            },
        )
    (DOCS / "performance.md").write_text(text)
    (DOCS / "performance.svg").write_text(plot(compressed))
    print(text)


def output(script: str, *arguments: str) -> str:
    """Return a benchmark's output, and the share of CPU time that the host stole."""
    before, start_time = stolen(), time.monotonic()
    done = subprocess.run([sys.executable, HERE / script, *arguments], check=True, capture_output=True, text=True)
    share = (stolen() - before) / (time.monotonic() - start_time) / (os.cpu_count() or 1)
    return f"{done.stdout.strip()}\n(CPU time stolen by the host: {share:.0%})"


def opening_times(root: Path, tasks: int) -> dict[str, float]:
    """Return milliseconds to the first page of tasks with an empty local cache, by kind of store."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        local = {"LOCAL_STORAGE_DIR": str(root)}
        found = {"a local directory": first_page(local, tasks, Path(directory) / "one")}
        with seaweedfs(Path(directory)) as endpoint:
            s3 = {
                "STORAGE_BACKEND": "s3", "S3_ENDPOINT": endpoint, "S3_BUCKET": "bench", "S3_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            }  # fmt: skip
            os.environ.update(s3)
            files = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
            asyncio.run(upload(files))
            found["S3 (SeaweedFS on the same machine)"] = first_page(s3, tasks, Path(directory) / "two")
            for name in s3:
                del os.environ[name]
    return found


async def upload(files: dict[str, Path]) -> None:
    store = open_store(resolve(SERVER, {})[0], writable=True)
    for key, path in files.items():
        await store.put(key, path)
    await store.close()


def first_page(environment: dict[str, str], tasks: int, cache: Path) -> float:
    """Return the median of five servers with empty caches."""
    milliseconds = []
    for number in range(5):
        settings = {"RAYHISTORY_INDEX_AHEAD": "false", "RAYHISTORY_CACHE_DIR": str(cache / str(number))}
        with Server(os.environ | environment | settings) as server:
            milliseconds.append(server.time(session_ref(tasks), FIRST_PAGE) * 1000)
    return statistics.median(milliseconds)


NOTES = {
    "First opens": """Time that a visitor waits for a session that is not indexed yet (`make bench-open`). The store of
the last rows is SeaweedFS behind a relay that delays each request by 30 ms.""",
    "Requests": """HTTP requests to the session of {largest:,} tasks, in milliseconds.

- *first* is the first request of its kind.
- *p50* and *p99* are of requests that differ from each other, so that the server's cache of responses has none of them.
- *cached* repeats the first request.
- The lines below *20 visitors at once* have the time until all twenty have their responses, and the server's highest
  memory so far.""",
    "Points in time": """Time that a visitor waits after moving the slider to a new point in time, on the session of
{largest:,} tasks. *overview* is the first page of the dashboard, with all its requests at once. *CPU* is the processor
time of the server.""",
    "Visitors": """Response times of the requests that pages of the Ray Dashboard send, for the same session. First for
one visitor, then for twenty at once without and with a browser cache (ETags).""",
    "Ray's command line": """Time that Ray's own commands take on the same session, in seconds.

- *client alone* is the same command with a server that replays recorded responses. The difference to *first* is the
  time of the history server. Ray's client needs most of the time, mainly to print YAML.
- *server, first* is the time of all requests of the first run, measured at the server.""",
    "SQL": """Time that the whole command `rayhistory sql --all` takes, for twenty sessions of 100,000 tasks each.""",
    "Diagnosis": """Time and memory to build the diagnosis of a session with 40,000 failures, and the time of its
page. In the last two lines, each failure has a traceback of 100 kB. Messages have 200 different last frames, of which
the 100 most frequent are listed.""",
    "Library": """Time that calls of the Python library take, on a session of {largest:,} tasks that was indexed in 20
steps while it ran. *of this process* is the processor time of the calling process.""",
    "Log search": """Searches in 1 GB of generated logs in a directory (`make bench-search`). *build* is the speed of
building the search index, and *of zstd -d* compares it with decompressing the same logs in one thread. *cold* searches
have empty caches, *warm* ones repeat them. A *scan* searches without the index, and is compared with ripgrep on the
unpacked files, which uses all cores, too.""",
    "Runs": """A run is one job of one session. The first lines show how many of the jobs that became slower are found,
in generated runs whose durations vary by 2 to 20 % (*noise*). The other lines show the time and size of the run table,
and the response times of its pages, for 10,000 sessions in S3 (SeaweedFS on the same machine).""",
    "Many sessions": """Visitors open many sessions in random order. The server's memory must not grow with the number
of sessions.""",
}


def page(folds: dict[str, list[Fold]], opening: dict[str, float], outputs: dict[str, str]) -> str:
    largest = folds[DEFAULT_VARIANT][-1].tasks
    rows = [fold for group in folds.values() for fold in group]
    notes = [note for note, group in folds.items() for _ in group]
    table = [f"| {' | '.join([*COLUMNS, ''])} |", f"|{'---:|' * len(COLUMNS)}---|"]
    table += [f"| {' | '.join([*row.row(), note])} |" for row, note in zip(rows, notes, strict=True)]
    opening_list = "\n".join(f"- {name}: {milliseconds:.0f} ms" for name, milliseconds in opening.items())
    sections = [
        f"## {name}\n\n{NOTES[name].format(largest=largest)}\n\n```\n{printed}\n```\n"
        for name, printed in outputs.items()
    ]
    return f"""# Performance

Measured by `make bench-performance` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {platform.machine()},
Python {platform.python_version()}. The same machine gives other figures at other times. So compare only figures of one
run.

## Indexing

The server builds the tables (the index) of a session from its events. This table shows how long that takes for a
session without an index.

- The events are generated: about four events of a kilobyte per task, out of order and partly repeated, as Ray sends
  them.
- *index MB* is the size of the index, and *of raw* compares it with the uncompressed events (*raw MB*).
- *MB/s* is *raw MB* divided by *seconds*.
- *peak MB* is the highest memory of all processes that build the index, together.
- *stolen* is the share of CPU time that the host gave to other virtual machines.
- The last column has the compression of the events and the setting `--index-memory`.

{chr(10).join(table)}

![Seconds and megabytes by number of tasks](performance.svg)

## Opening

Time that a visitor waits for the first page of tasks of a session with {largest:,} tasks. The session is already
indexed, and the server's cache is empty. Median of five measurements, with the store in:

{opening_list}

{chr(10).join(sections)}"""


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 60, 20, 20, 45


def plot(folds: list[Fold]) -> str:
    """Plot time and memory by number of tasks; both axes are logarithmic."""
    low, high = math.log10(folds[0].tasks), math.log10(folds[-1].tasks)
    highest = math.ceil(math.log10(max(max(fold.peak_mb, fold.seconds) for fold in folds)))
    lowest = math.floor(math.log10(min(fold.seconds for fold in folds)))

    def x(tasks: float) -> float:
        return LEFT + (math.log10(tasks) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - lowest) / (highest - lowest) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:g}</text>'
        for power in range(lowest, highest + 1)
    ]
    parts += [
        f'<text x="{x(fold.tasks):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{fold.tasks:,}</text>'
        for fold in folds
    ]
    for name, colour, values in (
        ("seconds", "#036DCF", [fold.seconds for fold in folds]),
        ("peak MB", "#D94F04", [fold.peak_mb for fold in folds]),
    ):
        points = [(x(fold.tasks), y(value)) for fold, value in zip(folds, values, strict=True)]
        line = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for across, up in points]
        across, up = points[0]
        parts.append(f'<text x="{across + 8:.1f}" y="{up - 8:.1f}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">tasks</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
