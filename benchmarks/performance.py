"""All figures of docs/performance.md, measured on this machine and written there.

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
from fold import HEADS, Fold, measure
from generate import session_ref
from query import Server

from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from storeservers.seaweed import KEY, SECRET, seaweedfs

DOCS = Path(__file__).parents[1] / "docs"
HERE = Path(__file__).parent
SIZES = (1_000, 10_000, 50_000, 100_000, 1_000_000)
USUAL = "gzip, 1 GiB"
FIRST_PAGE = "api/v0/tasks?limit=100"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure, and write docs/performance.md.")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="tasks of the largest session")
    parser.add_argument("--sessions", type=int, default=50, help="sessions that are visited in turn")
    parser.add_argument("--store", type=Path, help="keep the sessions there, and use them again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        place = arguments.store or Path(directory)
        less = measure(place, arguments.largest, "512Mi")
        plain = measure(place, arguments.largest, compressed=False)
        usual = [measure(place, tasks) for tasks in SIZES if tasks <= arguments.largest]
        folds = {USUAL: usual, "gzip, 512 MiB": [less], "plain, 1 GiB": [plain]}
        largest, store = str(arguments.largest), str(place / "gzip")
        text = page(
            folds,
            opened(place / "gzip", arguments.largest),
            {
                "Requests": output("query.py", largest, "--store", store),
                "Visitors": output("visitors.py", largest, "--store", store),
                "Ray's command line": output("clients.py", largest, "--rounds", "1", "--store", store),
                "SQL": output("sql.py", "100000", "--sessions", "20"),
                "Many sessions": output(
                    "sessions.py", str(arguments.sessions), "100000", "--store", str(place / "sessions")
                ),
            },
        )
    (DOCS / "performance.md").write_text(text)
    (DOCS / "performance.svg").write_text(plot(usual))
    print(text)


def output(script: str, *arguments: str) -> str:
    """What it prints, and how much of the cores other machines on the same host had meanwhile."""
    before, began = stolen(), time.monotonic()
    done = subprocess.run([sys.executable, HERE / script, *arguments], check=True, capture_output=True, text=True)
    share = (stolen() - before) / (time.monotonic() - began) / (os.cpu_count() or 1)
    return f"{done.stdout.strip()}\n({share:.0%} of the cores were stolen by the host)"


def opened(place: Path, tasks: int) -> dict[str, float]:
    """From the first request to the first page of tasks, with nothing in the local cache: in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="rayhistory-bench-") as directory:
        local = {"LOCAL_STORAGE_DIR": str(place)}
        found = {"a local directory": first_page(local, tasks, Path(directory) / "one")}
        with seaweedfs(Path(directory)) as endpoint:
            s3 = {
                "STORAGE_BACKEND": "s3", "S3_ENDPOINT": endpoint, "S3_BUCKET": "bench", "S3_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            }  # fmt: skip
            os.environ.update(s3)
            files = {str(path.relative_to(place)): path for path in sorted(place.rglob("*")) if path.is_file()}
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
    """The middle of five servers, each of which begins with nothing."""
    taken = []
    for number in range(5):
        given = {"RAYHISTORY_INDEX_AHEAD": "false", "RAYHISTORY_CACHE_DIR": str(cache / str(number))}
        with Server(os.environ | environment | given) as server:
            taken.append(server.time(session_ref(tasks), FIRST_PAGE) * 1000)
    return statistics.median(taken)


NOTES = {
    "Requests": """On the session of {largest:,} tasks, over HTTP. *First* is the first of its kind; p50 and p99 are of
requests that differ, so that no kept answer helps; *again* is the same request once more.""",
    "Visitors": """What the pages of the dashboard ask for, on that session: by one visitor, then by twenty at once.""",
    "Ray's command line": """On that session. *Client alone* is the same command at a server that only repeats what it
once heard: Ray's own client takes most of the time, above all to print YAML. *Server* is what all its requests
took the first time.""",
    "SQL": """`rayhistory sql --all`, the whole command, over twenty sessions of 100,000 tasks.""",
    "Many sessions": """Visited in turn; the memory is that of the serving process.""",
}


def page(folds: dict[str, list[Fold]], opens: dict[str, float], outputs: dict[str, str]) -> str:
    largest = folds[USUAL][-1].tasks
    rows = [fold for some in folds.values() for fold in some]
    notes = [note for note, some in folds.items() for _ in some]
    table = [f"| {' | '.join([*HEADS, ''])} |", f"|{'---:|' * len(HEADS)}---|"]
    table += [f"| {' | '.join([*row.row(), note])} |" for row, note in zip(rows, notes, strict=True)]
    opening = "\n".join(f"- from {name}: {milliseconds:.0f} ms" for name, milliseconds in opens.items())
    sections = [
        f"## {name}\n\n{NOTES[name].format(largest=largest)}\n\n```\n{printed}\n```\n"
        for name, printed in outputs.items()
    ]
    return f"""# Performance

Measured by `make bench-performance` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {platform.machine()},
Python {platform.python_version()}. Machines differ and are noisy: run it on yours, and compare within one run.

## Folding

A session of *n* tasks has about four events per task, of about a kilobyte, as Ray posts them, out of order and some
twice. It is folded from nothing, in processes of its own. *Peak* is the memory of all of them together, *stolen* what
the host gave to other machines of what the cores could have done.

{chr(10).join(table)}

![Seconds and megabytes against tasks](performance.svg)

## Opening

A session of {largest:,} tasks that has an index, opened by a server that has never seen it, up to the first
page of tasks; the middle of five:

{opening}

{chr(10).join(sections)}"""


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 60, 20, 20, 45


def plot(folds: list[Fold]) -> str:
    """Time and memory against tasks, both axes logarithmic."""
    low, high = math.log10(folds[0].tasks), math.log10(folds[-1].tasks)
    most = math.ceil(math.log10(max(max(fold.peak_mb, fold.seconds) for fold in folds)))
    least = math.floor(math.log10(min(fold.seconds for fold in folds)))

    def x(tasks: float) -> float:
        return LEFT + (math.log10(tasks) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - least) / (most - least) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:g}</text>'
        for power in range(least, most + 1)
    ]
    parts += [
        f'<text x="{x(fold.tasks):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{fold.tasks:,}</text>'
        for fold in folds
    ]
    for name, colour, values in (
        ("seconds", "#036DCF", [fold.seconds for fold in folds]),
        ("MB at most", "#D94F04", [fold.peak_mb for fold in folds]),
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
