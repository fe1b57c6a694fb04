"""Jobs that end well, some of them with much noise on the way."""

import os
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayTaskError, TaskCancelledError


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote(max_retries=0)
def raises() -> None:
    raise ValueError("this is expected")


@ray.remote(max_retries=3)
def dies_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(1)
        os._exit(1)
    return "survived"


@ray.remote(max_retries=3, retry_exceptions=True)
def raises_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        raise ConnectionError("try again")
    return "survived"


@ray.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def die(self) -> None:
        os._exit(1)


@ray.remote
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote
def parent() -> int:
    return sum(ray.get([square.remote(number) for number in range(5)]))


@ray.remote
def noisy() -> None:
    print("CUDA out of memory", file=sys.stderr)
    print("Fatal Python error: Segmentation fault (just kidding)", file=sys.stderr)
    print("*** SIGSEGV received at time=1 on cpu 0 ***", file=sys.stderr)
    print("NCCL watchdog timeout", file=sys.stderr)


def plain() -> None:
    ray.get([square.remote(number) for number in range(50)])


def catches() -> None:
    for _ in range(5):
        try:
            ray.get(raises.remote())
        except RayTaskError:
            print("as expected")


def never_asks() -> None:
    """Tasks fail, and nobody asks for their results."""
    refs = [raises.remote() for _ in range(5)]
    time.sleep(3)
    print(len(refs))


def retries() -> None:
    directory = tempfile.mkdtemp()
    print(ray.get([dies_once.remote(f"{directory}/a"), raises_once.remote(f"{directory}/b")]))


def kills_actor() -> None:
    actor = Counter.remote()
    ray.get(actor.add.remote())
    time.sleep(1)
    ray.kill(actor)
    time.sleep(2)


def restarts() -> None:
    actor = Counter.options(max_restarts=2).remote()
    ray.get(actor.add.remote())
    time.sleep(1)
    try:
        ray.get(actor.die.remote())
    except ray.exceptions.RayActorError:
        print("restarting")
    time.sleep(2)
    ray.get(actor.add.remote())


def cancels() -> None:
    ref = sleep.remote(60)
    time.sleep(2)
    ray.cancel(ref)
    try:
        ray.get(ref)
    except TaskCancelledError:
        print("cancelled")


def times_out() -> None:
    ref = sleep.remote(4)
    try:
        ray.get(ref, timeout=1)
    except GetTimeoutError:
        print("still running")
    ray.get(ref)


def nested() -> None:
    ray.get([parent.remote() for _ in range(4)])
    actors = [Counter.remote() for _ in range(2)]
    ray.get([actor.add.remote() for actor in actors])


def detached() -> None:
    actor = Counter.options(name="service", lifetime="detached").remote()
    ray.get(actor.add.remote())


def noise() -> None:
    ray.get([noisy.remote() for _ in range(4)])


def leaves_tasks() -> None:
    """The driver ends while tasks that nobody needs are running."""
    refs = [sleep.remote(60) for _ in range(2)]
    time.sleep(3)
    print(len(refs))


def exits_itself() -> None:
    @ray.remote
    class Leaver:
        def leave(self) -> None:
            ray.actor.exit_actor()

    actor = Leaver.remote()
    try:
        ray.get(actor.leave.remote())
    except ray.exceptions.RayActorError:
        print("gone")


def on_both_nodes() -> None:
    ray.get([square.options(num_cpus=0.1, scheduling_strategy="SPREAD").remote(number) for number in range(20)])
    ray.get(sleep.options(num_cpus=0.1, resources={"lost": 0.1}).remote(1))


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
