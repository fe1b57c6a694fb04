"""Select from stored metrics what rules look at: memory, object store, CPU and GPU of each node."""

from collections import defaultdict

from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples
from rayhistory.metrics.samples import Samples

Points = dict[int, float]


def node_samples(stored: list[tuple[str, Samples]]) -> dict[str, NodeSamples]:
    """Return the samples by node id."""
    points: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    for node, samples in stored:
        for series in samples.series:
            if series.name in WANTED_METRICS:
                of_name = points[node][series.name]
                for at_ms, value in series.points(samples.times):
                    of_name[at_ms] = of_name.get(at_ms, 0.0) + value
    return {node: _of_node(by_name) for node, by_name in points.items()}


WANTED_METRICS = {
    "ray_node_mem_used", "ray_node_mem_total", "ray_node_cgroup_mem_used", "ray_node_cgroup_mem_total",
    "ray_object_store_used_memory", "ray_object_store_available_memory", "ray_spill_manager_objects_bytes",
    "ray_node_cpu_utilization", "ray_node_gpus_utilization", "ray_memory_manager_worker_eviction_total",
}  # fmt: skip


def _of_node(by_name: dict[str, Points]) -> NodeSamples:
    used, free = by_name["ray_object_store_used_memory"], by_name["ray_object_store_available_memory"]
    capacity = {at: value + free.get(at, 0.0) for at, value in used.items()}
    return NodeSamples(
        memory=_pairs(by_name["ray_node_mem_used"], by_name["ray_node_mem_total"]),
        cgroup_memory=_pairs(by_name["ray_node_cgroup_mem_used"], by_name["ray_node_cgroup_mem_total"]),
        object_store=_pairs(used, capacity),
        spilled_bytes=max(by_name["ray_spill_manager_objects_bytes"].values(), default=0.0),
        cpu=sorted(by_name["ray_node_cpu_utilization"].items()),
        gpu=sorted(by_name["ray_node_gpus_utilization"].items()),
        oom_kills=max(by_name["ray_memory_manager_worker_eviction_total"].values(), default=0.0),
    )


def _pairs(used: Points, total: Points) -> list[MemorySample]:
    return [MemorySample(at, value, total[at]) for at, value in sorted(used.items()) if total.get(at)]
