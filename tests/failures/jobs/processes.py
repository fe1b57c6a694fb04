"""Jobs whose processes end in less usual ways, or never start."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError, WorkerCrashedError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy


@ray.remote(max_restarts=1)
class Native:
    def load(self) -> int:
        return 1

    def decode(self) -> int:
        block = np.zeros(4, dtype=np.uint8)
        time.sleep(1)
        return ctypes.memmove(8, block.ctypes.data, 4)

    async def abort(self) -> None:
        await asyncio.sleep(1)
        ctypes.CDLL(None).abort()

    def leave(self) -> None:
        time.sleep(1)
        sys.exit(3)


@ray.remote(max_retries=0)
def terminate_self() -> None:
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


@ray.remote(max_retries=0)
def exit_with_zero() -> None:
    time.sleep(1.5)
    os._exit(0)


@ray.remote(max_retries=0)
def complains_and_exits() -> None:
    print("Segmentation fault (core dumped) in child 4711, restarting the child", file=sys.stderr, flush=True)
    time.sleep(1.5)
    os._exit(9)


@ray.remote
class Cache:
    def __init__(self) -> None:
        self.blocks: list[np.ndarray] = []

    def add(self) -> int:
        self.blocks.append(np.ones(128 << 20, dtype=np.uint8))
        time.sleep(0.1)
        return len(self.blocks)


@ray.remote(max_retries=0)
def leak(seconds: float) -> None:
    """Use 64 MiB more again and again, until the kernel ends it."""
    blocks = []
    while True:
        blocks.append(np.ones(64 << 20, dtype=np.uint8))
        time.sleep(seconds)


@ray.remote
class Service:
    def ping(self) -> int:
        return os.getpid()

    def crash_later(self) -> None:
        import threading

        threading.Timer(3, lambda: ctypes.string_at(0)).start()


@ray.remote
class Trainer:
    def run(self) -> object:
        return ray.get(Gpu.remote().run.remote(), timeout=8)


@ray.remote(num_gpus=1)
class Gpu:
    def run(self) -> str:
        return "done"


@ray.remote
class Member:
    def ping(self) -> int:
        return 1


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote(max_retries=2, retry_exceptions=True)
def third_time(directory: str) -> str:
    tries = len(list(Path(directory).iterdir()))
    Path(directory, str(tries)).touch()
    if tries < 2:
        raise ConnectionError(f"try {tries}")
    return "done"


@ray.remote(max_retries=2)
def dies_once(directory: str) -> str:
    marker = Path(directory, "here")
    if not marker.exists():
        marker.touch()
        time.sleep(1)
        os._exit(1)
    return "done"


@ray.remote(max_retries=0)
def optional_packages() -> str:
    import traceback

    try:
        import cupy_is_not_here  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        traceback.print_exc()
    try:
        np.ones((1 << 24, 1 << 24))
    except MemoryError:
        traceback.print_exc()
    print("OOM", "Segmentation fault", "Fatal Python error: none", "Killed", file=sys.stderr)
    return "used numpy"


@ray.remote(resources={"lost": 0.1}, num_cpus=0.1)
class Remote:
    def ping(self) -> int:
        return 1


def native_crash() -> None:
    """The actor crashes, is restarted, and crashes again."""
    native = Native.remote()
    ray.get(native.load.remote())
    for _ in range(3):
        try:
            ray.get(native.decode.remote())
        except RayActorError:
            print("trying again")
            time.sleep(2)
    ray.get(native.decode.remote())


def async_abort() -> None:
    native = Native.options(max_restarts=0).remote()
    ray.get(native.abort.remote())


def actor_leaves() -> None:
    native = Native.options(max_restarts=0).remote()
    ray.get(native.load.remote())
    ray.get(native.leave.remote())


def terminated() -> None:
    ray.get(terminate_self.remote())


def exits_with_zero() -> None:
    ray.get(exit_with_zero.remote())


def exits_after_noise() -> None:
    ray.get(complains_and_exits.remote())


def actor_leaks() -> None:
    cache = Cache.remote()
    while ray.get(cache.add.remote()) < 40:
        pass
    time.sleep(20)
    ray.get(cache.add.remote())


def leaks_in_container() -> None:
    ray.get(leak.remote(0.6))


def nested_gpu() -> None:
    ray.get(Trainer.remote().run.remote())


def placement_group_too_large() -> None:
    group = placement_group([{"CPU": 2}, {"CPU": 64}], strategy="PACK")
    ray.get(group.ready(), timeout=10)


def placement_group_spread() -> None:
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    strategy = PlacementGroupSchedulingStrategy(group)
    ray.get([square.options(scheduling_strategy=strategy).remote(2)], timeout=10)


def resource_typo() -> None:
    ray.get([square.remote(1), square.options(resources={"acelerator": 1}).remote(2)], timeout=10)


def unknown_node() -> None:
    ray.get(square.options(scheduling_strategy=NodeAffinitySchedulingStrategy("a1" * 28, soft=False)).remote(2))


def too_many_actors() -> None:
    members = [Member.options(num_cpus=1).remote() for _ in range(6)]
    ray.get([member.ping.remote() for member in members], timeout=12)


def code_archive_missing() -> None:
    ray.get(square.options(runtime_env={"working_dir": "file:///nowhere/code.zip"}).remote(2))


def service_starts() -> None:
    service = Service.options(name="service", lifetime="detached").remote()
    ray.get(service.ping.remote())
    service.crash_later.remote()


def service_is_gone() -> None:
    time.sleep(4)
    ray.get(ray.get_actor("service").ping.remote())


def service_dies_in_use() -> None:
    service = ray.get_actor("service")
    for _ in range(100):
        ray.get(service.ping.remote())
        time.sleep(0.1)


def actor_on_lost_node() -> None:
    remote = Remote.remote()
    ray.get(remote.ping.remote())
    time.sleep(3)
    print("everything is under way", flush=True)
    for _ in range(100):
        ray.get(remote.ping.remote())
        time.sleep(0.5)


def kill_is_handled() -> None:
    member = Member.remote()
    ray.get(member.ping.remote())
    ref = sleep.remote(1)
    ray.kill(member)
    try:
        ray.get(member.ping.remote())
    except RayActorError:
        print("as planned")
    ray.get(ref)


def cancel_is_handled() -> None:
    refs = [sleep.remote(60) for _ in range(2)]
    time.sleep(2)
    for ref in refs:
        ray.cancel(ref, force=True)
        try:
            ray.get(ref)
        except (TaskCancelledError, WorkerCrashedError, RayTaskError):
            print("cancelled")


def third_try() -> None:
    import tempfile

    print(ray.get(third_time.remote(tempfile.mkdtemp())))


def handled_noise() -> None:
    print("CUDA out of memory, falling back to the CPU", file=sys.stderr)
    print(ray.get([optional_packages.remote() for _ in range(3)]))


def thread_fails() -> None:
    """An exception in a thread of the driver, which nobody waits for."""
    import threading

    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    ray.get(square.remote(2))


def survives_then_fails() -> None:
    import tempfile

    ray.get(dies_once.remote(tempfile.mkdtemp()))
    ray.get(square.remote("a"))  # type: ignore[arg-type]


def handled_then_waits() -> None:
    try:
        ray.get(square.remote("a"))  # type: ignore[arg-type]
    except TypeError:
        print("skipped")
    ref = sleep.remote(300)
    time.sleep(3)
    print("everything is under way", flush=True)
    ray.get(ref)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
