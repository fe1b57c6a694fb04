"""Jobs that fail by an exception: in a task, in an actor, in the driver, or on the way between them."""

import sys
import threading
import time

import ray


@ray.remote(max_retries=0)
def parse(number: int) -> int:
    if number == 3:
        raise ValueError(f"cannot parse record {number} of shard-000{number}.parquet")
    return number


@ray.remote
class Model:
    def __init__(self, path: str = "") -> None:
        if path:
            raise FileNotFoundError(f"no checkpoint at {path}")

    def predict(self, value: int) -> float:
        return 1 / value


@ray.remote(max_retries=0)
def needs_module() -> None:
    import package_that_is_not_installed  # type: ignore[import-not-found]  # noqa: F401


@ray.remote(max_retries=0)
def returns_lock() -> object:
    return threading.Lock()


@ray.remote(max_retries=0)
def raises(text: str) -> None:
    raise RuntimeError(text)


@ray.remote(max_retries=0)
def combine(*values: int) -> int:
    return sum(values)


@ray.remote
def use_lock(lock: object) -> None: ...


@ray.remote(max_retries=3, retry_exceptions=True)
def fails_every_time() -> None:
    raise ConnectionError("database at db-7.example:5432 refused the connection")


@ray.remote
def sleep(seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        time.sleep(0.1)  # short, so that a cancellation is noticed


@ray.remote
class Outer:
    def work(self) -> int:
        return ray.get(parse.remote(3))


def task_raises() -> None:
    ray.get([parse.remote(number) for number in range(6)])


def actor_raises() -> None:
    model = Model.remote()
    ray.get(model.predict.remote(1))
    ray.get(model.predict.remote(0))


def nested_task_raises() -> None:
    ray.get(Outer.remote().work.remote())


def retries_used_up() -> None:
    ray.get(fails_every_time.remote())


def actor_init_raises() -> None:
    model = Model.remote("/models/latest")
    ray.get([model.predict.remote(1) for _ in range(3)])


def driver_raises() -> None:
    ray.get(parse.remote(1))
    config = {"rate": 0.1}
    print(config["learning_rate"])


def driver_exits_with_code() -> None:
    ray.get(parse.remote(1))
    sys.exit(3)


def task_needs_module() -> None:
    ray.get(needs_module.remote())


def driver_needs_module() -> None:
    import package_that_is_not_installed  # noqa: F401


def unpicklable_argument() -> None:
    ray.get(use_lock.remote(threading.Lock()))


def unpicklable_result() -> None:
    ray.get(returns_lock.remote())


def cuda_out_of_memory() -> None:
    ray.get(raises.remote("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity)"))


def cuda_error() -> None:
    ray.get(raises.remote("CUDA error: device-side assert triggered"))


def nccl_timeout() -> None:
    ray.get(
        raises.remote("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)")
    )


def dependency_chain() -> None:
    root = parse.remote(3)
    ray.get([combine.remote(root, number) for number in range(20)])


def cancelled() -> None:
    ref = sleep.remote(60)
    time.sleep(2)
    ray.cancel(ref)
    ray.get(ref)


def two_failures() -> None:
    """Most tasks fail for one reason, and one for another; only the first reason stops the driver."""
    refs = [parse.remote(3) for _ in range(10)]
    other = raises.remote("disk quota of team-a exceeded")
    try:
        ray.get(other)
    finally:
        ray.get(refs)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
