"""Jobs that succeed, and take longer than they need."""

import os
import sys
import time
from pathlib import Path

import ray


@ray.remote
def step(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote
def tiny() -> None: ...


@ray.remote(max_retries=4)
def flaky(directory: str, number: int) -> None:
    time.sleep(2)
    marker = f"{directory}/{number}"
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)


@ray.remote(num_cpus=0.1, scheduling_strategy="SPREAD")
def spread() -> None:
    time.sleep(3.0 if os.environ.get("SLOW_NODE") else 0.5)


@ray.remote
class Worker:
    def step(self, seconds: float) -> None:
        time.sleep(seconds)


@ray.remote
def after(result: None, seconds: float) -> None:
    time.sleep(seconds)


def set_up_slowly() -> None:
    time.sleep(15)


def stragglers() -> None:
    ray.get([step.remote(14.0 if number == 7 else 0.5) for number in range(16)])


def hung() -> None:
    refs = [step.remote(0.2) for _ in range(12)]
    ray.get(refs)
    ref = step.remote(500)
    time.sleep(5)
    print("everything is under way", flush=True)
    ray.get(ref)


def slow_node() -> None:
    ray.get([spread.remote() for _ in range(40)])


def serial_driver() -> None:
    for _ in range(25):
        ray.get(step.remote(0.4))


def tiny_tasks() -> None:
    ray.get([tiny.remote() for _ in range(6000)])


def waits_for_cpus() -> None:
    ray.get([step.options(num_cpus=4).remote(2.0) for _ in range(8)])


def wasted_retries() -> None:
    import tempfile

    directory = tempfile.mkdtemp()
    ray.get([flaky.remote(directory, number) for number in range(6)])


def waits_for_arguments() -> None:
    """Eight tasks wait for the result of one."""
    first = step.remote(12.0)
    ray.get([after.remote(first, 0.5) for _ in range(8)])


def slow_environment() -> None:
    """Each process needs 15 s before it can run tasks."""
    environment = {"worker_process_setup_hook": set_up_slowly}
    ray.init(runtime_env=environment)
    ray.get([step.remote(1.0) for _ in range(4)])


def busy_actor() -> None:
    """Calls wait for their turn, because the actor runs one at a time."""
    worker = Worker.remote()
    ray.get([worker.step.remote(3.0) for _ in range(10)])


if __name__ == "__main__":
    if sys.argv[1] != "slow_environment":
        ray.init()
    globals()[sys.argv[1]]()
