"""Resource hours of a session: those of its nodes, those that tasks and actors reserved, and those that were used."""

from collections.abc import Iterable
from statistics import fmean

import msgspec

from rayhistory.diagnosis.lenient_json import numbers
from rayhistory.diagnosis.session_facts import NodeSamples
from rayhistory.index.query.run_figures import HeldResources
from rayhistory.runs.session_summary import MAX_NODE_TYPES, NodeType, ResourceHours

HOUR_MS = 3_600_000
GIB = 2**30
_MAX_AMOUNT = 1e9
_MAX_HOURS = 1e9
_MIN_COVERAGE = 0.5
"""Metrics are used only if they cover at least this share of the nodes' hours."""


class NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """One node, and when it lived."""

    node_id: str
    name: str = ""
    resources: dict[str, float] = {}
    start_ms: int | None = None
    end_ms: int | None = None
    """The end of the node, or the time of the last data if it lived to the end."""

    @property
    def hours(self) -> float:
        """Hours for which the node lived; 0 if its start is unknown or its times are inconsistent."""
        if self.start_ms is None or self.end_ms is None:
            return 0.0
        return min(max(0, self.end_ms - self.start_ms) / HOUR_MS, _MAX_HOURS)


class SessionResources(msgspec.Struct, frozen=True):
    cpu: ResourceHours
    gpu: ResourceHours
    memory: ResourceHours


def session_resources(
    nodes: list[NodeLife], held: Iterable[HeldResources], samples: dict[str, NodeSamples]
) -> SessionResources:
    reserved_cpu, reserved_gpu, reserved_memory = reserved_hours(held)

    def hours(name: str, unit: float, used: dict[str, float], reserved: float) -> ResourceHours:
        allocated = {node.node_id: _amount(node.resources, name) / unit * node.hours for node in nodes}
        return ResourceHours(
            allocated=round(sum(allocated.values()), 6),
            reserved=round(reserved, 6),
            used=_measured(allocated, {node.node_id: used.get(node.node_id, 0.0) * node.hours for node in nodes}, used),
        )

    return SessionResources(
        cpu=hours("CPU", 1, _mean_cpus(nodes, samples), reserved_cpu),
        gpu=hours("GPU", 1, _mean_gpus(samples), reserved_gpu),
        memory=hours("memory", GIB, _mean_memory(samples), reserved_memory),
    )


def reserved_hours(held: Iterable[HeldResources]) -> tuple[float, float, float]:
    """Return the CPU-, GPU- and GiB-hours that tasks and actors held."""
    requests = [(_amounts(numbers(each.required_resources)), each.held_ms / HOUR_MS) for each in held]
    cpu, gpu, memory = (sum(amounts[place] * hours for amounts, hours in requests) for place in range(3))
    return cpu, gpu, memory


def allocated_of(node: NodeLife) -> tuple[float, float, float]:
    """Return the CPUs, GPUs and GiB of memory that a node had."""
    return _amounts(node.resources)


def _amounts(resources: dict[str, float]) -> tuple[float, float, float]:
    return _amount(resources, "CPU"), _amount(resources, "GPU"), _amount(resources, "memory") / GIB


def _amount(resources: dict[str, float], name: str) -> float:
    amount = resources.get(name, 0.0)
    limit = _MAX_AMOUNT * (GIB if name == "memory" else 1)
    return amount if 0 < amount <= limit else 0.0


def _mean_cpus(nodes: list[NodeLife], samples: dict[str, NodeSamples]) -> dict[str, float]:
    """Return the average number of busy CPUs by node. Samples are percentages of the whole node."""
    cpus = {node.node_id: _amount(node.resources, "CPU") for node in nodes}
    return {
        node: fmean(value for _, value in each.cpu) / 100 * cpus[node]
        for node, each in samples.items()
        if each.cpu and node in cpus
    }


def _mean_gpus(samples: dict[str, NodeSamples]) -> dict[str, float]:
    return {node: fmean(value for _, value in each.gpu) / 100 for node, each in samples.items() if each.gpu}


def _mean_memory(samples: dict[str, NodeSamples]) -> dict[str, float]:
    return {node: fmean(each.used for each in own.memory) / GIB for node, own in samples.items() if own.memory}


def _measured(allocated: dict[str, float], used: dict[str, float], measured: dict[str, float]) -> float | None:
    """Return the measured hours, scaled up for nodes without samples; None if too few nodes have samples."""
    total = sum(allocated.values())
    covered = sum(hours for node, hours in allocated.items() if node in measured)
    if not total or covered < _MIN_COVERAGE * total:
        return None
    found = sum(hours for node, hours in used.items() if node in measured)
    return round(min(max(0.0, found * total / covered), total), 6)


def node_types(nodes: list[NodeLife]) -> list[NodeType]:
    """Group nodes by name and main resources, largest groups first."""
    groups: dict[tuple[str, tuple[tuple[str, float], ...]], int] = {}
    for node in nodes:
        main = {name: amount for name in ("CPU", "GPU") if (amount := _amount(node.resources, name))}
        if memory := _amount(node.resources, "memory"):
            main["memory_gib"] = round(memory / GIB)
        key = node.name, tuple(main.items())
        groups[key] = groups.get(key, 0) + 1
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))[:MAX_NODE_TYPES]
    return [NodeType(name=name, count=count, resources=dict(main)) for (name, main), count in largest]
