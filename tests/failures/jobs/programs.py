"""Failing jobs in the shapes of real programs: nested work, async actors, generators, wrapped exceptions."""

import asyncio
import configparser
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayTaskError


class PaymentError(Exception):
    """An exception that pickle cannot restore: its arguments are not those of its constructor."""

    def __init__(self, account: str, amount: float) -> None:
        super().__init__(f"account {account} cannot pay {amount:.2f}")
        self.account, self.amount = account, amount


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch names it."""


@ray.remote(max_retries=0)
def read_setting(text: str, section: str) -> str:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser[section]["rate"]


@ray.remote(max_retries=0)
def load_shard(section: str) -> str:
    return ray.get(read_setting.remote("[train]\nrate = 0.1\n", section))


@ray.remote(max_retries=0)
def run_epoch(section: str) -> str:
    return ray.get(load_shard.remote(section))


@ray.remote
class Fetcher:
    def __init__(self, bad: int) -> None:
        self.bad = bad

    async def fetch(self, number: int) -> int:
        await asyncio.sleep(0.2)
        if number == self.bad:
            raise LookupError(f"page {number} has no rows")
        return number


@ray.remote(max_restarts=1, max_task_retries=3)
class Uploader:
    @ray.method(retry_exceptions=[ConnectionError])
    def upload(self, name: str) -> None:
        raise ConnectionResetError(f"bucket-3 closed the connection while {name} was sent")


@ray.remote(max_retries=0)
def rows(count: int) -> Iterator[int]:
    for number in range(count):
        if number == 3:
            raise UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, f"invalid byte in row {number}")
        yield number


@ray.remote(max_retries=0)
def check(number: int) -> int:
    if number == 1:
        raise KeyError("user_id")
    if number == 4:
        raise ValueError("age -4 of row 17 is negative")
    return number


@ray.remote(max_retries=0)
def convert(text: str) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"manifest-12.json is damaged after {error.pos} bytes") from error
    return found


@ray.remote(max_retries=0)
def pay(account: str) -> None:
    raise PaymentError(account, 12.5)


@ray.remote(max_retries=0)
def raise_long(size: int) -> None:
    raise RuntimeError("unexpected response: " + "x" * size)


@ray.remote(max_retries=0)
def run_tool() -> None:
    subprocess.run([sys.executable, "-c", "import sys; sys.exit('cannot open video-7.mp4')"], check=True)


@ray.remote(max_retries=0)
def allocate_table() -> int:
    return int(np.ones((1 << 24, 1 << 24)).sum())


@ray.remote(max_retries=0)
def descend(depth: int) -> int:
    return descend_on(depth)


def descend_on(depth: int) -> int:
    return descend_on(depth + 1)


@ray.remote
class Plugin:
    def __init__(self) -> None:
        import xml.etree.accelerator  # type: ignore[import-not-found]  # noqa: F401

    def run(self) -> None: ...


@ray.remote(max_retries=0)
def forward(layer: int) -> None:
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.10 GiB")


@ray.remote(max_retries=0)
def train_step() -> None:
    try:
        ray.get(forward.remote(3))
    except RayTaskError as error:
        raise RuntimeError("training step 1200 failed") from error


@ray.remote(max_retries=0)
def write_checkpoint() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("weights" * 10_000)


@ray.remote(max_retries=0)
def sleep_for(seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        time.sleep(0.1)


@ray.remote(max_retries=0)
def wait_for_child() -> None:
    ray.get(sleep_for.remote(60))


@ray.remote(max_retries=0)
def impatient() -> None:
    ray.get(sleep_for.remote(120), timeout=6)


@ray.remote
class Queue:
    def put(self, number: int) -> None:
        time.sleep(2)


@ray.remote
class Slow:
    def __init__(self) -> None:
        time.sleep(300)

    def ready(self) -> bool:
        return True


def three_deep() -> None:
    ray.get([run_epoch.remote("train"), run_epoch.remote("evaluate")])


def async_actor() -> None:
    fetcher = Fetcher.remote(7)
    ray.get([fetcher.fetch.remote(number) for number in range(10)])


def actor_task_retries() -> None:
    ray.get(Uploader.remote().upload.remote("part-9"))


def generator() -> None:
    total = 0
    for ref in rows.options(num_returns="streaming").remote(6):
        total += ray.get(ref)
    print(total)


def one_error_handled() -> None:
    refs = [check.remote(number) for number in range(6)]
    try:
        ray.get(refs[:3])
    except KeyError:
        print("skipping the rows without user_id")
    ray.get(refs[3:])


def raised_from() -> None:
    ray.get(convert.remote('{"rows": 12,'))


def driver_wraps() -> None:
    try:
        ray.get(convert.remote('{"rows": 12,'))
    except ValueError as error:
        raise RuntimeError("the import of 2026-11-17 failed") from error


def exception_of_two_arguments() -> None:
    ray.get(pay.remote("DE-4471"))


def long_message() -> None:
    ray.get(raise_long.remote(5 << 20))


def tool_fails() -> None:
    ray.get(run_tool.remote())


def table_too_large() -> None:
    ray.get(allocate_table.remote())


def recursion() -> None:
    ray.get(descend.remote(0))


def actor_needs_submodule() -> None:
    ray.get(Plugin.remote().run.remote())


def module_left_behind() -> None:
    """The function is in a module that only the driver has imported."""
    directory = tempfile.mkdtemp()
    Path(directory, "team_helpers.py").write_text("def clean(text):\n    return text.strip()\n")
    sys.path.insert(0, directory)
    import team_helpers  # type: ignore[import-not-found]

    Path(directory, "team_helpers.py").unlink()
    ray.get(ray.remote(max_retries=0)(team_helpers.clean).remote(" a "))


def nested_cuda_out_of_memory() -> None:
    ray.get(train_step.remote())


def checkpoint_on_full_disk() -> None:
    ray.get(write_checkpoint.remote())


def captured_lock() -> None:
    lock = threading.Lock()

    @ray.remote
    def count() -> None:
        with lock:
            pass

    ray.get(count.remote())


def put_generator() -> None:
    ray.get(sleep_for.remote(0.1))
    ray.put(number for number in range(3))


def cancelled_from_outside() -> None:
    """The driver cancels a task with its children, and then waits for it."""
    ref = wait_for_child.remote()
    time.sleep(3)
    ray.cancel(ref, recursive=True)
    ray.get(ref)


def hung_task() -> None:
    ray.get([sleep_for.remote(0.2) for _ in range(12)])
    ray.get(sleep_for.remote(300), timeout=15)


def nested_timeout() -> None:
    ray.get(impatient.remote())


def too_many_calls() -> None:
    queue = Queue.options(max_pending_calls=3).remote()
    ray.get([queue.put.remote(number) for number in range(10)])


def slow_constructor() -> None:
    ray.get(Slow.remote().ready.remote(), timeout=12)


def exits_after_handled_errors() -> None:
    bad = 0
    for number in range(6):
        try:
            ray.get(check.remote(number))
        except (KeyError, ValueError):
            bad += 1
    if bad:
        print(f"{bad} of 6 rows are bad", file=sys.stderr)
        sys.exit(1)


def interrupted() -> None:
    import os
    import signal

    ray.get(sleep_for.remote(0.1))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def succeeds_then_fails() -> None:
    """Noise of other causes, and then one failure."""
    ray.get(talks.remote())
    ray.get(convert.remote("{"))


@ray.remote(max_retries=0)
def talks() -> None:
    print("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", file=sys.stderr)
    print("Segmentation fault (core dumped)", file=sys.stderr)
    print("ModuleNotFoundError: No module named 'cupy'", file=sys.stderr)
    print("OOM killer: Killed process 77 (python)", file=sys.stderr)
    print("OSError: [Errno 28] No space left on device", file=sys.stderr)


def gets_time_out_handled_then_raises() -> None:
    ref = sleep_for.remote(4)
    try:
        ray.get(ref, timeout=1)
    except GetTimeoutError:
        print("not yet")
    ray.get(ref)
    settings: dict[str, Any] = {}
    print(settings["output"])


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
