"""One scenario: a small cluster of real processes under the fault schedule of a seed, and its verification.

A scenario has one to three nodes with a collector each, tasks whose events are posted, log files that grow and rotate,
one of two stores, and a fold and a history server that read the session at the end. The seed determines the faults and
their times, but not how far each process is at that time.
"""

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from faults.disks import used_bytes
from faults.fault_injection import RECOVERY_TIMEOUT_S, FaultInjector
from faults.fault_schedule import FaultSchedule, Outcome
from faults.log_writer import read_files
from faults.scenario_stores import Stores
from faults.simulated_cluster import ScenarioNode, SimulatedCluster
from faults.verification import (
    StoredSession,
    TaskStates,
    check_events,
    check_index,
    check_logs,
    check_seal,
    check_whole_files,
    expected_tasks,
    read_session,
)


def run_scenario(seed: int, stores: Stores, keep: Path | None = None) -> Outcome:
    """Run and verify the scenario of a seed. A failed one leaves its files in `keep`."""
    schedule, start = FaultSchedule.from_seed(seed), time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="rhd"))
    outcome = Outcome(schedule)
    try:
        with SimulatedCluster(schedule, home, stores, outcome) as cluster:
            scenario = Scenario(cluster)
            try:
                scenario.run()
                outcome.problems += scenario.verify()
            except Exception as failure:  # noqa: BLE001 - a failed scenario must not stop the others
                outcome.problems.append(f"{type(failure).__name__}: {failure}")
            if outcome.problems and keep:
                cluster.save(keep / str(seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    outcome.seconds = time.monotonic() - start
    return outcome


class Scenario:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._schedule, self._store, self._history = cluster.schedule, cluster.store, cluster.history
        self._injector = FaultInjector(cluster)
        self._with_server = self._schedule.includes("server killed")
        self._finished = threading.Event()
        self._final_logs: list[dict[str, bytes]] = []
        """The log files of each remaining node when the last session ended."""

    # Run

    def run(self) -> None:
        nodes = self._cluster.nodes
        if self._with_server:
            self._history.start()
        in_parallel([node.collector.start for node in nodes])
        disk_watch = threading.Thread(target=self._watch_disk_usage)
        disk_watch.start()
        workers = [worker for node in nodes for worker in (node.writer, node.poster)]
        for worker in workers:
            worker.start()
        try:
            start = time.monotonic()
            for at, kind, number in self._schedule.faults:
                time.sleep(max(0.0, start + at - time.monotonic()))
                self._injector.inject(kind, nodes[number])
            time.sleep(max(0.3, start + 3.5 - time.monotonic()))
        finally:
            for worker in workers:
                worker.stop()
            self._finished.set()
            disk_watch.join()
        self._cluster.clear_faults()
        self._end()

    def _watch_disk_usage(self) -> None:
        while not self._finished.wait(0.05):
            for node in self._cluster.nodes:
                node.max_spool_bytes = max(node.max_spool_bytes, used_bytes(node.collector.spool))

    def _end(self) -> None:
        remaining, sessions = self._cluster.remaining, self._cluster.sessions
        if len(sessions) > 1 or self._cluster.rng.random() < 0.3:
            self._age_old_logs()
            for node in remaining:
                node.collector.kill()
            in_parallel([node.collector.start for node in remaining])
            self._wait_for_old_sessions()
        self._final_logs = [read_files(node.collector.home / sessions[-1] / "logs") for node in remaining]
        in_parallel([partial(_end_collector, node) for node in remaining])

    def _age_old_logs(self) -> None:
        """Backdate the logs of ended sessions: the collector picks them up after a quiet minute."""
        for node in self._cluster.nodes:
            for session in self._cluster.sessions[:-1]:
                for path in (node.collector.home / session / "logs").rglob("*"):
                    modified = path.stat().st_mtime - 120
                    os.utime(path, (modified, modified))

    def _wait_for_old_sessions(self) -> None:
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while problem := next(self._old_log_problems(), None):
            assert time.monotonic() < deadline, f"logs of an ended session were not stored: {problem}"
            time.sleep(0.2)

    def _old_log_problems(self) -> Iterator[str]:
        store = self._store.local_copy()
        for session in self._cluster.sessions[:-1]:
            stored = read_session(store, self._cluster.name, session)
            for node in self._cluster.remaining:
                yield from check_logs(stored, node.name, node.writer.versions[session])

    # Verify

    def verify(self) -> list[str]:
        """Index all sessions, then return every difference between what was sent and what is stored and served."""
        # A killed fold leaves its lease, which would delay the next fold until the lease expires.
        self._store.remove("claim")
        self._history.fold(self._cluster.name)
        self._sum_up()
        problems = [
            f"{node.name[:8]} used {node.max_spool_bytes} bytes of disk, its budget is {self._schedule.budget_mb} MB"
            for node in self._cluster.nodes
            if node.max_spool_bytes > self._schedule.budget_mb * 10**6
        ]
        store = self._store.local_copy(settled=True)
        for session in self._cluster.sessions:
            stored = read_session(store, self._cluster.name, session)
            problems += [f"{session[-5:]}: {problem}" for problem in self._verify_session(store, session, stored)]
        return problems

    def _verify_session(self, store: Path, session: str, stored: StoredSession) -> Iterator[str]:
        nodes, name = self._cluster.nodes, self._cluster.name
        sent: Counter[str] = sum((node.poster.sent for node in nodes), Counter())
        required = set().union(
            *((node.confirmed_events if node.lost else node.poster.acked).get(session, set()) for node in nodes)
        )
        yield from check_events(stored, required, sent)
        is_last = session == self._cluster.sessions[-1]
        for node in nodes:
            yield from check_logs(stored, node.name, node.writer.versions.get(session, []))
            if not node.lost and is_last:
                exact = not self._schedule.includes("failing disk", "full disk")
                yield from check_seal(stored, node.name, exact=exact)
        for node, files in zip(self._cluster.remaining, self._final_logs, strict=True) if is_last else ():
            yield from check_whole_files(store, name, session, node.name, files)
        if is_last and not stored.ended:
            yield "end.json is missing"
        if stored.events:
            yield from check_index(store, name, session, stored)
            if self._with_server:
                yield from self._check_server(session, expected_tasks(stored))

    def _check_server(self, session: str, expected: TaskStates) -> Iterator[str]:
        """Compare the served tasks. The server may serve its previous index for a while."""
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while True:
            tasks = self._history.tasks(self._cluster.name, session)
            served = {(task["task_id"], task["attempt_number"]): task["state"] for task in tasks}
            if len(tasks) != len(served):
                yield "the server serves attempts twice"
            if served == {key: attempt.state for key, attempt in expected.items()}:
                return
            if time.monotonic() > deadline:
                yield f"the server serves {len(served)} attempts that differ from the {len(expected)} expected ones"
                return
            time.sleep(0.3)

    def _sum_up(self) -> None:
        outcome = self._cluster.outcome
        for node in self._cluster.nodes:
            outcome.events += sum(map(len, node.poster.acked.values()))
            outcome.log_bytes += node.writer.written
            outcome.posts += node.poster.statuses.total()
            outcome.faults["batch resent"] += node.poster.resent
            outcome.faults.update({f"log {kind}": count for kind, count in node.writer.rotations.items()})
            if node.disk:
                outcome.faults.update(node.disk.counts())
        outcome.faults.update({f"store: {kind}": count for kind, count in self._store.injected.items()})
        outcome.requests += self._store.requests
        outcome.faults = +outcome.faults


def _end_collector(node: ScenarioNode) -> None:
    code = node.collector.end(RECOVERY_TIMEOUT_S)
    assert code == 0, f"collector exited with status {code}:\n{node.collector.log()[-2000:]}"


def in_parallel(calls: list[Callable[[], object]]) -> None:
    """Make all calls at once, wait for them, and raise the first failure."""
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
