"""The processes and stores of a scenario: collectors, log writers, event posters, and a history server."""

import contextlib
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from faults import disk_faults
from faults.collector_under_test import SESSION, CollectorUnderTest
from faults.disks import small_disk
from faults.entity_events import entity_events
from faults.fault_schedule import FaultSchedule, Outcome
from faults.history_process import HistoryProcess
from faults.log_writer import LogWriter
from faults.scenario_stores import DirectoryStore, RelayedBucket, Stores
from faults.workload import Poster

SMALL_DISK_SIZE = "4m"


@dataclass
class ScenarioNode:
    collector: CollectorUnderTest
    writer: LogWriter
    poster: Poster
    disk: "disk_faults.DiskFaults | None"
    small_disk: Path | None
    lost: bool = False
    confirmed_events: dict[str, set[str]] = field(default_factory=dict)
    """For a lost node: acked events that were in the store before the loss, by session."""
    max_spool_bytes: int = 0

    @property
    def name(self) -> str:
        return self.collector.node


class SimulatedCluster:
    def __init__(self, schedule: FaultSchedule, home: Path, stores: Stores, outcome: Outcome) -> None:
        self.schedule, self.home, self.outcome = schedule, home, outcome
        self.rng = random.Random(f"hurts {schedule.seed}")  # changing this string changes every seed
        self.name = f"seed-{schedule.seed}"
        self.store: DirectoryStore | RelayedBucket = stores.make(schedule.store, home)
        self.sessions = [SESSION]
        """Names of all sessions so far; the last one is current."""
        self.history = HistoryProcess(home, self.store.environment)
        self.nodes: list[ScenarioNode] = []
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> "SimulatedCluster":
        with contextlib.ExitStack() as resources:
            resources.callback(self.history.kill)
            resources.callback(self.store.clear)
            for number in range(self.schedule.nodes):
                self.nodes.append(self._make_node(number, resources))
            for node in self.nodes:
                node.poster.peers = [each.poster for each in self.nodes]
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _make_node(self, number: int, resources: contextlib.ExitStack) -> ScenarioNode:
        seed = self.schedule.seed
        name = random.Random(f"node {seed} {number}").randbytes(28).hex()
        small = resources.enter_context(small_disk(SMALL_DISK_SIZE)) if self._gets_full_disk(number) else None
        spool = (small or self.home) / f"spool-{number}"
        flags = (
            f"--role={'Worker' if number else 'Head'}", "--log-interval=250ms", "--heartbeat-interval=1s",
            f"--event-rotation-interval={self.schedule.rotation_ms}ms",
            f"--event-max-disk-mb={self.schedule.budget_mb}", "--event-max-file-size-mb=1", "--grace-period=100s",
        )  # fmt: skip
        disk = None
        environment = {**self.store.environment, "FAULT_SEED": f"{seed}{number}"}
        if disk_faults.library():
            disk = disk_faults.DiskFaults(self.home / f"control-{number}", spool)
            environment |= disk.environment
        collector = resources.enter_context(
            CollectorUnderTest(*flags, spool=spool, node=name, cluster=self.name, **environment)
        )
        writer = LogWriter(f"logs {seed} {number}", name)
        poster = Poster(f"posts {seed} {number}", name, collector.port, entities=None if number else entity_events)
        writer.move(collector.home / SESSION)
        poster.session = SESSION
        return ScenarioNode(collector, writer, poster, disk, small)

    def _gets_full_disk(self, number: int) -> bool:
        return any(kind == "full disk" and node == number for _, kind, node in self.schedule.faults)

    @property
    def remaining(self) -> list[ScenarioNode]:
        """The nodes that were not lost."""
        return [node for node in self.nodes if not node.lost]

    def clear_faults(self) -> None:
        """Stop store and disk faults, and correct all clocks."""
        self.store.clear()
        for node in self.nodes:
            if node.disk:
                node.disk.clear()
                node.disk.set_clock(0)

    def save(self, directory: Path) -> None:
        """Copy everything that is left of the scenario, for debugging."""
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.home, directory / "scenario", dirs_exist_ok=True)
        shutil.copytree(self.store.local_copy(), directory / "store", dirs_exist_ok=True)
        for node in self.nodes:
            shutil.copy(node.collector.home / "log", directory / f"{node.name[:8]}.log")
            for session in self.sessions:
                logs = node.collector.home / session / "logs"
                if logs.exists():
                    shutil.copytree(logs, directory / node.name[:8] / session, dirs_exist_ok=True)
