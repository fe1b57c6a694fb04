"""Select the stored metrics that rules need: memory, object store, CPU and GPU of each node."""

from collections import defaultdict

from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples
from rayhistory.metrics.samples import Samples

Points = dict[int, float]
_REPORT = "ray_train_report_total_blocked_time_s"
_MAX_RANKS = 10_000


def node_samples(stored: list[tuple[str, Samples]]) -> dict[str, NodeSamples]:
    """Return the samples by node id."""
    points: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    for node, samples in stored:
        for series in samples.series:
            if series.name in WANTED_METRICS:
                of_name = points[node][series.name]
                for at_ms, value in series.points(samples.times):
                    of_name[at_ms] = of_name.get(at_ms, 0.0) + value
    ranks = _ranks(stored)
    return {node: _of_node(by_name, ranks.get(node, {})) for node, by_name in points.items()}


def _ranks(stored: list[tuple[str, Samples]]) -> dict[str, dict[str, float]]:
    """Return the seconds that each rank of Ray Train spent on reports, by node."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for node, samples in stored:
        for series in samples.series:
            if series.name == _REPORT and len(found[node]) < _MAX_RANKS:
                rank = series.labels.get("ray_train_worker_world_rank", "")[:20]
                last = max((value for _, value in series.points(samples.times)), default=0.0)
                found[node][rank] = max(last, found[node].get(rank, 0.0))
    return found


WANTED_METRICS = {
    "ray_node_mem_used", "ray_node_mem_total", "ray_node_cgroup_mem_used", "ray_node_cgroup_mem_total",
    "ray_object_store_used_memory", "ray_object_store_available_memory", "ray_spill_manager_objects_bytes",
    "ray_data_iter_total_blocked_seconds", "ray_data_iter_total_seconds", _REPORT,
    "ray_node_cpu_utilization", "ray_node_gpus_utilization", "ray_memory_manager_worker_eviction_total",
}  # fmt: skip


def _of_node(by_name: dict[str, Points], ranks: dict[str, float]) -> NodeSamples:
    used, free = by_name["ray_object_store_used_memory"], by_name["ray_object_store_available_memory"]
    capacity = {at: value + free.get(at, 0.0) for at, value in used.items()}
    return NodeSamples(
        memory=_pairs(by_name["ray_node_mem_used"], by_name["ray_node_mem_total"]),
        cgroup_memory=_pairs(by_name["ray_node_cgroup_mem_used"], by_name["ray_node_cgroup_mem_total"]),
        object_store=_pairs(used, capacity),
        spilled_bytes=max(by_name["ray_spill_manager_objects_bytes"].values(), default=0.0),
        cpu=sorted(by_name["ray_node_cpu_utilization"].items()),
        gpu=sorted(by_name["ray_node_gpus_utilization"].items()),
        data_blocked_s=max(by_name["ray_data_iter_total_blocked_seconds"].values(), default=0.0),
        data_total_s=max(by_name["ray_data_iter_total_seconds"].values(), default=0.0),
        train_ranks=ranks,
        train_span_ms=max(by_name[_REPORT], default=0) - min(by_name[_REPORT], default=0),
        oom_kills=max(by_name["ray_memory_manager_worker_eviction_total"].values(), default=0.0),
    )


def _pairs(used: Points, total: Points) -> list[MemorySample]:
    return [MemorySample(at, value, total[at]) for at, value in sorted(used.items()) if total.get(at)]
