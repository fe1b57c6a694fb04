"""The live proxy before a real Ray with token authentication: API, job output, Ray's command line and sign-in."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import websockets

from rayhistory.sessions import SessionRef
from support.ray_without_collector import ray_without_collector
from support.two_namespaces import run_historyserver, store_live_session

TOKEN = "0123456789abcdef0123456789abcdef"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
JOB = "live-job"


async def run_job(dashboard: str) -> None:
    """Submit a job and wait for its end."""
    async with httpx.AsyncClient(base_url=dashboard, headers=WITH_TOKEN, timeout=60, trust_env=False) as http:
        body = {"entrypoint": "echo output of a live job", "submission_id": JOB}
        async with asyncio.timeout(180):
            while (await http.post("/api/jobs/", json=body)).status_code == 500:  # noqa: ASYNC110 - no agent yet
                await asyncio.sleep(0.5)
            while (await http.get(f"/api/jobs/{JOB}")).json()["status"] != "SUCCEEDED":  # noqa: ASYNC110
                await asyncio.sleep(0.3)


def ray(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [str(Path(sys.executable).with_name("ray")), *arguments]
    done = subprocess.run(
        command, env=environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


async def tail(address: str, **headers: str) -> str:
    url = f"{address.replace('http', 'ws', 1)}api/jobs/{JOB}/logs/tail"
    async with websockets.connect(url, additional_headers=headers, proxy=None, compression=None) as socket:
        return "".join([str(message) async for message in socket])


def check_proxy(address: str, dashboard: str) -> None:
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
        refused = http.get("api/v0/nodes")
        assert (refused.status_code, refused.text) == (401, "Unauthorized: Missing authentication token")
        proxied: Any = http.get("api/v0/nodes", headers=WITH_TOKEN).json()["data"]["result"]["result"]
        direct = httpx.get(f"{dashboard}/api/v0/nodes", headers=WITH_TOKEN, trust_env=False).json()
        assert proxied == direct["data"]["result"]["result"]
        wrong = http.post("api/authenticate", headers={"Authorization": "Bearer another"}, json={})
        assert (wrong.status_code, wrong.text) == (403, "Forbidden: Invalid authentication token")
        assert http.get("api/authentication_mode").json() == {"authentication_mode": "token"}
        assert http.post("api/authenticate", headers=WITH_TOKEN, json={}).status_code == 200
        assert http.get("api/jobs/").json()[0]["submission_id"] == JOB
        assert http.get(f"{address}api/actors/kill?actor_id=00").status_code == 404
    assert proxied[0]["node_id"] in ray("list", "nodes", "--address", address)
    assert "output of a live job" in ray("job", "logs", "--follow", JOB, "--address", address)
    assert "output of a live job" in asyncio.run(tail(address, **WITH_TOKEN))


async def scenario(directory: Path, temp_dir: Path) -> None:
    async with ray_without_collector(temp_dir, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as started:
        await run_job(started.dashboard)
        ref = SessionRef.checked("default", "alive", started.session.name)
        await asyncio.to_thread(store_live_session, directory, started.dashboard, ref)
        await asyncio.to_thread(serve_and_check, directory, started.dashboard)


def serve_and_check(directory: Path, dashboard: str) -> None:
    with run_historyserver(directory, "--live", "--vanished-after=1h") as server:
        check_proxy(f"{server}/s/default/alive/live/", dashboard)


def test_live_cluster_is_read_with_the_token_of_the_visitor(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rl") as temp_dir:
        asyncio.run(scenario(tmp_path, Path(temp_dir)))
