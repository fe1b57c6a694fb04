"""Wait until a live cluster lists all that its workers will report about their tasks."""

import asyncio

import httpx

TASKS = "/api/v0/tasks?detail=1&limit=10000"
_QUIET_S = 3.0
"""Seconds without a change. Workers report every second, but less often on a busy machine."""


async def wait_until_reported(dashboard: str) -> None:
    """Return when the list of tasks has stayed the same for a while."""
    earlier = None
    async with httpx.AsyncClient(base_url=dashboard, timeout=60, trust_env=False) as http:
        while (tasks := (await http.get(TASKS)).json()["data"]["result"]["result"]) != earlier:
            earlier = tasks
            await asyncio.sleep(_QUIET_S)


def lacks_last_report(task: dict, live_workers: dict) -> bool:  # type: ignore[type-arg]
    """Return True if the worker of a task is dead, so that the list may lack what the task did in its last second."""
    worker = live_workers.get(task["worker_id"])
    return worker is None or not worker["is_alive"]
