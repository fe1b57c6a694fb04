"""`rayhistory run` records a user's script without any setup."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import httpx

from rayhistory.cli.local_ray.subreaper import descendants
from rayhistory.server.app import create_app
from rayhistory.settings import SERVER, resolve

RAYHISTORY = Path(sys.executable).parent / "rayhistory"

SCRIPT = """
import os
os.environ["RAY_DEDUP_LOGS"] = "0"  # else Ray may fold the lines of several workers into one
import ray
ray.init(logging_level="error")

@ray.remote
def square(x):
    print("squaring", x)
    return x * x

print("sum", sum(ray.get([square.remote(i) for i in range(8)])))
ray.get(square.options(name="the-very-last").remote(9))
"""


async def run(store: Path, name: str, *argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        RAYHISTORY, "run", "--name", name, "--num-cpus", "2", "--", *argv,
        env=os.environ | {"LOCAL_STORAGE_DIR": str(store)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


async def get(store: Path, url: str) -> httpx.Response:
    settings, _ = resolve(SERVER, {}, {"LOCAL_STORAGE_DIR": str(store), "RAYHISTORY_CACHE_DIR": str(store / "cache")})
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://history") as http,
    ):
        for _ in range(100):
            response = await http.get(url)
            if response.status_code != 503:  # being indexed
                break
            await asyncio.sleep(0.5)
        return response


def link(errors: str) -> str:
    found = re.search(r"Session recorded\. Open it with: rayhistory open --serve (\S+)\n", errors)
    assert found, errors
    return f"/s/{found[1]}/"


def test_two_concurrent_runs_are_both_recorded_completely(tmp_path: Path) -> None:
    """Each has its output on the terminal, the exit code of its command, and all tasks in the store."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    store = tmp_path / "store"

    async def both() -> None:
        runs = await asyncio.gather(
            run(store, "one", "python", str(script)), run(store, "two", "sh", "-c", f"python {script}; no-such-program")
        )
        for (code, output, errors), expected in zip(runs, (0, 127), strict=True):
            assert code == expected, errors
            assert "sum 140" in output
            url = link(errors)
            tasks = (await get(store, f"{url}api/v0/tasks?limit=100")).json()["data"]["result"]["result"]
            assert len(tasks) == 9
            assert {task["state"] for task in tasks} == {"FINISHED"}
            assert "the-very-last" in {task["name"] for task in tasks}
            (job,) = (await get(store, f"{url}api/jobs/")).json()
            assert job["status"] == ("SUCCEEDED" if expected == 0 else "FAILED")
            assert job["driver_exit_code"] == expected
            logs = (await get(store, f"{url}api/jobs/{job['submission_id']}/logs")).json()["logs"]
            assert "sum 140" in logs
            assert "squaring 7" in logs
            assert ("no-such-program" in logs) == (expected == 127)

    asyncio.run(both())
    listed = json.loads(os.popen(f"LOCAL_STORAGE_DIR={store} {RAYHISTORY} sessions --json").read())  # noqa: S605
    assert {(row["cluster"], row["state"]) for row in listed} == {("one", "ended"), ("two", "ended")}


def test_stopped_run_is_recorded(tmp_path: Path) -> None:
    """Ctrl-C stops the job; its data up to then is in the store, and no process is left."""
    script = tmp_path / "endless_job.py"
    script.write_text("import time; print('started', flush=True); time.sleep(600)")
    store = tmp_path / "store"

    async def stopped() -> tuple[int, str, list[int]]:
        process = await asyncio.create_subprocess_exec(
            RAYHISTORY, "run", "--num-cpus", "1", "--", "python", str(script),
            env=os.environ | {"LOCAL_STORAGE_DIR": str(store)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        while b"started" not in (line := await process.stdout.readline()):
            assert line, "the job ended early"
        started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        return process.returncode or 0, errors.decode(), started

    code, errors, started = asyncio.run(stopped())
    assert code == 130, errors
    assert len(started) > 4
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    assert "/endless-job/" in link(errors)
    (job,) = asyncio.run(get(store, f"{link(errors)}api/jobs/")).json()
    assert job["status"] == "STOPPED"


def test_killed_run_leaves_no_process_and_its_session_is_stored(tmp_path: Path) -> None:
    """SIGKILL leaves no time to tidy up: Ray and the collector notice it themselves."""

    async def killed() -> list[int]:
        code = "import time; print('started', flush=True); time.sleep(600)"
        process = await asyncio.create_subprocess_exec(
            RAYHISTORY, "run", "--name", "killed", "--num-cpus", "1", "--", "python", "-c", code,
            env=os.environ | {"LOCAL_STORAGE_DIR": str(tmp_path)}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout
        while b"started" not in (line := await process.stdout.readline()):
            assert line, "the job ended early"
        started = descendants(process.pid)
        process.kill()
        await process.wait()
        return started

    started = asyncio.run(killed())
    assert len(started) > 4
    deadline = time.monotonic() + 120
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    listed = json.loads(os.popen(f"LOCAL_STORAGE_DIR={tmp_path} {RAYHISTORY} sessions --json").read())  # noqa: S605
    assert [(row["cluster"], row["state"]) for row in listed] == [("killed", "ended")]
