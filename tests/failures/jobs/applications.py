"""Jobs in the shapes of real applications. Some fail, and some survive failures that they expect."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, TaskCancelledError, WorkerCrashedError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Ledger:
    def balance(self, accounts: list[int]) -> float:
        return sum(accounts) / len(accounts)


@ray.remote
class Bank:
    def __init__(self) -> None:
        self.ledger = Ledger.remote()

    def report(self) -> float:
        return float(ray.get(self.ledger.balance.remote([])))


@ray.remote
class Crawler:
    async def page(self, number: int) -> int:
        await asyncio.sleep(0.1 if number != 4 else 30)
        return number

    async def crawl(self, count: int) -> list[int]:
        pages = [asyncio.wait_for(self.page(number), 2) for number in range(count)]
        return list(await asyncio.gather(*pages))


@ray.remote
class Mailbox:
    def __init__(self) -> None:
        self.letters: list[int] = []

    def put(self, letter: int) -> int:
        self.letters.append(letter)
        return len(self.letters)

    def get(self) -> int:
        return self.letters.pop(0)

    def crash_sometimes(self, directory: str, number: int) -> int:
        marker = Path(directory, f"crashed-{number // 5}")
        if number % 5 == 4 and not marker.exists():
            marker.touch()
            time.sleep(0.5)
            os._exit(1)
        return number

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@ray.remote(max_retries=0)
def windows(rows: int) -> Iterator[np.ndarray]:
    for start in range(0, rows, 100):
        yield _smooth(start)


def _smooth(start: int) -> np.ndarray:
    width = 100 if start < 300 else 99
    return np.concatenate([np.zeros((2, 100)), np.ones((2, width))])


@ray.remote(max_retries=2, retry_exceptions=True)
def consume(mailbox: Any, number: int) -> int:
    time.sleep(1)
    return int(ray.get(mailbox.put.remote(number)))


@ray.remote(max_retries=0)
def call_with_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(2)
    time.sleep(60)


@ray.remote(max_retries=0)
def work(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@ray.remote(max_retries=0)
def exits() -> None:
    time.sleep(1)
    os._exit(1)


@ray.remote(max_retries=0)
def train_trial(number: int) -> float:
    for _ in range(40 if number % 2 else 5):
        time.sleep(0.1)
    if number == 4:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return 1 / (number + 1)


def _ask_replica(number: int) -> None:
    raise ConnectionError(f"replica {number} is down")


@ray.remote
def logs_errors(number: int) -> int:
    logging.basicConfig()
    for _ in range(20):
        try:
            _ask_replica(number)
        except ConnectionError:
            logging.exception("trying the next replica")
    child = multiprocessing.get_context("fork").Process(target=os.abort)
    child.start()
    child.join()
    return child.exitcode or 0


def _exit_in_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if 30 in batch["id"]:
        time.sleep(1)
        os._exit(2)
    return batch


def _rename(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"price": batch["prize"] * 2}


def _divide(row: dict[str, int]) -> dict[str, float]:
    return {"share": 1 / (row["id"] % 40)}


def _invert(matrix: int) -> float:
    return float(np.linalg.inv(np.zeros((2, 2)) + matrix)[0, 0])


def nested_actors() -> None:
    bank = Bank.remote()
    ray.get(bank.report.remote())


def crawler_times_out() -> None:
    ray.get(Crawler.remote().crawl.remote(6))


def library_in_generator() -> None:
    for ref in windows.options(num_returns="streaming").remote(600):
        print(ray.get(ref).sum())


def waits_too_short() -> None:
    """The driver gives up waiting for one of several results."""
    refs = [work.remote(seconds) for seconds in (0.5, 0.5, 40)]
    ray.get(refs, timeout=6)


def batch_exits() -> None:
    ray.data.range(100, override_num_blocks=10).map_batches(_exit_in_batch, max_retries=0).materialize()


def batch_without_column() -> None:
    ray.data.range(100, override_num_blocks=4).map_batches(_rename).materialize()


def mailbox_was_killed() -> None:
    """The program kills the actor on purpose, and forgets that consumers still need it."""
    mailbox = Mailbox.remote()
    ray.get(mailbox.put.remote(1))
    refs = [consume.remote(mailbox, number) for number in range(4)]
    time.sleep(0.5)
    ray.kill(mailbox)
    ray.get(refs)


def alarm() -> None:
    ray.get(call_with_alarm.remote())


def pool_fails() -> None:
    from ray.util.multiprocessing import Pool

    with Pool(2) as pool:
        print(pool.map(_invert, range(4)))


def actors_hold_all_cpus() -> None:
    mailboxes = [Mailbox.options(num_cpus=1).remote() for _ in range(4)]
    ray.get([mailbox.put.remote(1) for mailbox in mailboxes])
    ray.get([work.remote(0.1) for _ in range(3)], timeout=15)


def name_is_taken() -> None:
    first = Mailbox.options(name="inbox").remote()
    ray.get(first.put.remote(1))
    Mailbox.options(name="inbox").remote()


def invalid_environment() -> None:
    ray.get(work.options(runtime_env={"env_vars": {"THREADS": 4}}).remote(0.1))


def survives_crashes() -> None:
    for _ in range(3):
        try:
            ray.get(exits.remote())
        except WorkerCrashedError:
            time.sleep(1)
    print(ray.get(work.remote(0.1)))


def replaces_busy_actors() -> None:
    for _ in range(3):
        mailbox = Mailbox.remote()
        refs = [mailbox.put.remote(1), mailbox.wait.remote(60), mailbox.put.remote(2)]
        time.sleep(2)
        ray.kill(mailbox)
        try:
            ray.get(refs)
        except RayActorError:
            print("replacing")
    ray.get(Mailbox.remote().put.remote(3))


def tolerates_bad_rows() -> None:
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = 3
    print(ray.data.range(100, override_num_blocks=10).map(_divide).materialize().count())


def stops_bad_trials() -> None:
    """Early stopping: cancel trials that are slow, and ignore one that fails."""
    trials = {train_trial.remote(number): number for number in range(8)}
    time.sleep(3)
    done, slow = ray.wait(list(trials), num_returns=len(trials), timeout=1)
    for ref in slow:
        ray.cancel(ref, force=True)
    scores = []
    for ref in [*done, *slow]:
        try:
            scores.append(ray.get(ref))
        except RayError as error:
            print(trials[ref], type(error).__name__)
    print(max(scores))


def logs_tracebacks() -> None:
    print(ray.get([logs_errors.remote(number) for number in range(4)]))


def leaves_generator() -> None:
    generator: Any = windows.options(num_returns="streaming").remote(300)
    print(ray.get(next(generator)).sum())
    del generator
    time.sleep(2)


def crashes_are_retried() -> None:
    mailbox = Mailbox.options(max_restarts=-1, max_task_retries=-1).remote()
    with tempfile.TemporaryDirectory() as directory:
        print([ray.get(mailbox.crash_sometimes.remote(directory, number)) for number in range(15)])


def removes_placement_group() -> None:
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group)
    mailbox = Mailbox.options(num_cpus=1, scheduling_strategy=strategy).remote()
    ray.get(mailbox.put.remote(1))
    remove_placement_group(group)
    time.sleep(3)
    try:
        ray.get(mailbox.put.remote(2))
    except RayActorError:
        print("removed")


def asks_for_a_gpu_first() -> None:
    ref = work.options(num_gpus=1).remote(0.1)
    try:
        ray.get(ref, timeout=6)
    except GetTimeoutError:
        ray.cancel(ref)
    try:
        ray.get(ref)
    except TaskCancelledError:
        print("using a CPU")
    ray.get(work.remote(0.1))


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
