"""Jobs that do not get what they ask for: resources, packages, memory of the object store, disk."""

import sys
import time

import numpy as np
import ray


@ray.remote
class Holder:
    def ping(self) -> None: ...


@ray.remote
def work() -> int:
    return 1


@ray.remote(max_retries=0)
def make(mib: int) -> np.ndarray:
    return np.zeros(mib << 20, dtype=np.uint8)


def infeasible_task() -> None:
    ray.get(work.options(num_gpus=2).remote(), timeout=8)


def infeasible_actor() -> None:
    ray.get(Holder.options(resources={"TPU-v5": 4}).remote().ping.remote(), timeout=8)


def infeasible_without_timeout() -> None:
    ref = work.options(num_cpus=64).remote()
    print("everything is under way", flush=True)
    ray.get(ref)


def no_capacity() -> None:
    holders = [Holder.options(num_cpus=2).remote() for _ in range(2)]
    ray.get([holder.ping.remote() for holder in holders])
    ray.get([work.options(num_cpus=2).remote() for _ in range(3)], timeout=12)


def cannot_install() -> None:
    pip = {"packages": ["package-that-does-not-exist==9.9"], "pip_install_options": ["--no-index"]}
    ray.get(work.options(runtime_env={"pip": pip}).remote())


def wrong_python() -> None:
    ray.get(work.options(runtime_env={"py_executable": "/nowhere/bin/python"}).remote(), timeout=25)


def disk_full() -> None:
    refs = [ray.put(np.zeros(30 << 20, dtype=np.uint8)) for _ in range(6)]
    print(len(refs))


def store_full() -> None:
    refs = [make.remote(40) for _ in range(6)]
    ray.get(refs)


def spills() -> None:
    refs = [make.remote(40) for _ in range(8)]
    ray.wait(refs, num_returns=len(refs), fetch_local=False)
    time.sleep(4)
    for ref in refs:
        ray.get(ref)
    time.sleep(4)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
