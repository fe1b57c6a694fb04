"""Jobs whose processes die: by signals, by their own exit, for lack of memory, or with their node."""

import ctypes
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

GIB = 1 << 30


@ray.remote(max_retries=0)
def crash(how: str) -> None:
    time.sleep(1.5)  # so that Ray has exported that the task is running
    die(how)


def die(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "exit":
        os._exit(7)
    elif how == "sys_exit":
        sys.exit(5)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


@ray.remote(max_retries=2)
def exit_each_time() -> None:
    time.sleep(0.3)
    os._exit(7)


@ray.remote(max_retries=0)
def nap(seconds: float, pid_file: str = "") -> None:
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()))
    time.sleep(seconds)


@ray.remote
class Crasher:
    def ping(self) -> int:
        return os.getpid()

    def crash(self, how: str) -> None:
        die(how)


@ray.remote(max_restarts=4, max_task_retries=4)
class Looper:
    def step(self) -> None:
        time.sleep(0.5)
        os._exit(3)


@ray.remote(max_retries=0)
def allocate(gib: float) -> int:
    blocks = []
    for _ in range(int(gib * 16)):
        blocks.append(np.ones(GIB // 16, dtype=np.uint8))
        time.sleep(0.05)
    time.sleep(20)
    return len(blocks)


@ray.remote(max_retries=0, resources={"lost": 0.1}, num_cpus=0.1)
def on_other_node(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote(max_retries=0, resources={"lost": 0.1}, num_cpus=0.1)
def large_on_other_node() -> np.ndarray:
    return np.zeros(10 << 20, dtype=np.uint8)


def segfault() -> None:
    ray.get(crash.remote("segfault"))


def abort() -> None:
    ray.get(crash.remote("abort"))


def exits() -> None:
    ray.get(crash.remote("exit"))


def exits_each_time() -> None:
    ray.get(exit_each_time.remote())


def actor_exits() -> None:
    actor = Crasher.remote()
    ray.get(actor.ping.remote())
    ray.get(actor.crash.remote("exit"))


def busy_task_killed() -> None:
    """Somebody else kills the process of a task, and other tasks of the function succeed."""
    ray.get([nap.remote(1.0) for _ in range(3)])
    with tempfile.TemporaryDirectory() as directory:
        pid_file = Path(directory) / "pid"
        ref = nap.remote(60, str(pid_file))
        while not pid_file.exists():
            time.sleep(0.2)
        time.sleep(4)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        ray.get(ref)


def sys_exits() -> None:
    ray.get(crash.remote("sys_exit"))


def killed() -> None:
    ray.get(crash.remote("kill"))


def actor_segfault() -> None:
    actor = Crasher.remote()
    ray.get(actor.ping.remote())
    time.sleep(1.5)
    ray.get([actor.crash.remote("segfault"), *(actor.ping.remote() for _ in range(5))])


def actor_killed() -> None:
    actor = Crasher.remote()
    pid = ray.get(actor.ping.remote())
    time.sleep(1.5)
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    ray.get(actor.ping.remote())


def crash_loop() -> None:
    ray.get(Looper.remote().step.remote())


def out_of_memory() -> None:
    ray.get([allocate.remote(4.0), crash.remote("nothing")])


def driver_killed() -> None:
    ray.get(crash.remote("nothing"))
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)


def driver_segfault() -> None:
    ray.get(crash.remote("nothing"))
    time.sleep(1.5)
    ctypes.string_at(0)


def lost_node() -> None:
    refs = [on_other_node.remote(120) for _ in range(5)]
    time.sleep(3)
    print("everything is under way", flush=True)
    ray.get(refs)


def lost_object() -> None:
    ref = large_on_other_node.remote()
    ray.wait([ref], fetch_local=False)
    time.sleep(3)
    print("everything is under way", flush=True)
    time.sleep(15)
    ray.get(ref)


@ray.remote
class Owner:
    def put(self) -> list[ray.ObjectRef[Any]]:
        return [ray.put(np.zeros(1 << 20, dtype=np.uint8))]


def object_without_owner() -> None:
    owner = Owner.remote()
    (ref,) = ray.get(owner.put.remote())
    time.sleep(1.5)
    ray.kill(owner)
    time.sleep(2)
    ray.get(ref)


def runs_on() -> None:
    """Run until somebody else ends it."""
    refs = [crash.options(num_cpus=1).remote("nothing") for _ in range(2)]
    ray.get(refs)
    refs = [wait_long.remote() for _ in range(2)]
    time.sleep(3)
    print("everything is under way", flush=True)
    ray.get(refs)


@ray.remote
def wait_long() -> None:
    time.sleep(300)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
