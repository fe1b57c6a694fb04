"""Resource hours of a session: what its nodes had, what tasks and actors held, and what was measured."""

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
"""Metrics count only if they cover at least this share of the nodes' hours."""


class NodeLife(msgspec.Struct, frozen=True, kw_only=True):
    """One node, and how long it lived."""

    node_id: str
    name: str = ""
    resources: dict[str, float] = {}
    hours: float = 0.0


class SessionResources(msgspec.Struct, frozen=True):
    cpu: ResourceHours
    gpu: ResourceHours
    memory: ResourceHours


def lifetime_hours(start_ms: int | None, end_ms: int | None, last_ms: int | None) -> float:
    """Return how long a node lived; 0 if its clocks disagree or its start is unknown."""
    end = end_ms if end_ms is not None else last_ms
    if start_ms is None or end is None:
        return 0.0
    return min(max(0, end - start_ms) / HOUR_MS, _MAX_HOURS)


def session_resources(
    nodes: list[NodeLife], held: Iterable[HeldResources], samples: dict[str, NodeSamples]
) -> SessionResources:
    requests = [(numbers(each.required_resources), each.held_ms / HOUR_MS) for each in held]

    def hours(name: str, unit: float, used: dict[str, float]) -> ResourceHours:
        allocated = {node.node_id: _amount(node.resources, name) / unit * node.hours for node in nodes}
        reserved = sum(_amount(resources, name) / unit * held_hours for resources, held_hours in requests)
        return ResourceHours(
            allocated=round(sum(allocated.values()), 6),
            reserved=round(reserved, 6),
            used=_measured(allocated, {node.node_id: used.get(node.node_id, 0.0) * node.hours for node in nodes}, used),
        )

    return SessionResources(
        cpu=hours("CPU", 1, _mean_cpus(nodes, samples)),
        gpu=hours("GPU", 1, {node: fmean(v for _, v in each.gpu) / 100 for node, each in samples.items() if each.gpu}),
        memory=hours("memory", GIB, {
            node: fmean(sample.used for sample in each.memory) / GIB for node, each in samples.items() if each.memory
        }),
    )  # fmt: skip


def _amount(resources: dict[str, float], name: str) -> float:
    amount = resources.get(name, 0.0)
    limit = _MAX_AMOUNT * (GIB if name == "memory" else 1)
    return amount if 0 < amount <= limit else 0.0


def _mean_cpus(nodes: list[NodeLife], samples: dict[str, NodeSamples]) -> dict[str, float]:
    """Return the CPUs that were busy on average, by node. The samples are percent of the whole node."""
    cpus = {node.node_id: _amount(node.resources, "CPU") for node in nodes}
    return {
        node: fmean(value for _, value in each.cpu) / 100 * cpus[node]
        for node, each in samples.items()
        if each.cpu and node in cpus
    }


def _measured(allocated: dict[str, float], used: dict[str, float], measured: dict[str, float]) -> float | None:
    """Return the measured hours, scaled to nodes without samples; None if too few have any."""
    total = sum(allocated.values())
    covered = sum(hours for node, hours in allocated.items() if node in measured)
    if not total or covered < _MIN_COVERAGE * total:
        return None
    found = sum(hours for node, hours in used.items() if node in measured)
    return round(min(max(0.0, found * total / covered), total), 6)


def node_types(nodes: list[NodeLife]) -> list[NodeType]:
    """Group nodes by name and main resources; the largest groups come first."""
    groups: dict[tuple[str, tuple[tuple[str, float], ...]], int] = {}
    for node in nodes:
        main = {name: amount for name in ("CPU", "GPU") if (amount := _amount(node.resources, name))}
        if memory := _amount(node.resources, "memory"):
            main["memory_gib"] = round(memory / GIB)
        key = node.name, tuple(main.items())
        groups[key] = groups.get(key, 0) + 1
    largest = sorted(groups.items(), key=lambda item: (-item[1], item[0]))[:MAX_NODE_TYPES]
    return [NodeType(name=name, count=count, resources=dict(main)) for (name, main), count in largest]
