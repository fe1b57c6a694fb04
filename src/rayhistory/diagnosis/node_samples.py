"""Select the stored metrics that rules need: memory, object store, CPU and GPU of each node."""

from collections import defaultdict
from collections.abc import Iterator

from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, TrainRank
from rayhistory.metrics.samples import SampledSeries, Samples

Points = dict[int, float]
_REPORT = "ray_train_report_total_blocked_time_s"
_WAIT = "ray_train_checkpoint_sync_total_time_s"
_STORE = "ray_train_checkpoint_transfer_total_time_s"
_TRAIN_METRICS = {_REPORT, _WAIT, _STORE}
_TRAIN_LABELS = ("ray_train_run_id", "ray_train_worker_world_rank", "ray_train_worker_actor_id")
_MAX_LABEL = 64
_MAX_VALUE = 2.0**63
"""Maximum absolute value of a sample. Jobs can export any value, also infinity, with which rules cannot calculate."""
_RESOURCES = "ray_resources"
_MAX_RESOURCES = 1_000
_MAX_RANKS = 10_000


def node_samples(stored: list[tuple[str, Samples]]) -> dict[str, NodeSamples]:
    """Return the samples that rules need, by node id."""
    points: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    for node, samples in stored:
        for series in samples.series:
            if series.name in WANTED_METRICS:
                of_name = points[node][series.name]
                for at_ms, value in _points(series, samples):
                    of_name[at_ms] = of_name.get(at_ms, 0.0) + value
    ranks, available = _train_ranks(stored), _available(stored)
    return {node: _of_node(by_name, ranks.get(node, []), available[node]) for node, by_name in points.items()}


def _points(series: SampledSeries, samples: Samples) -> Iterator[tuple[int, float]]:
    return ((at_ms, value) for at_ms, value in series.points(samples.times) if abs(value) <= _MAX_VALUE)


def _available(stored: list[tuple[str, Samples]]) -> dict[str, dict[str, Points]]:
    """Return the resources that nothing reserves, by node and name."""
    found: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    for node, samples in stored:
        for series in samples.series:
            if series.name == _RESOURCES and series.labels.get("State") == "AVAILABLE":
                name = series.labels.get("Name", "")[:_MAX_LABEL]
                if name in found[node] or len(found[node]) < _MAX_RESOURCES:
                    found[node][name].update(_points(series, samples))
    return found


def _train_ranks(stored: list[tuple[str, Samples]]) -> dict[str, list[TrainRank]]:
    """Return the workers of Ray Train by node. A rank that was restarted has several."""
    found: dict[str, dict[tuple[str, ...], dict[str, Points]]] = defaultdict(dict)
    for node, samples in stored:
        for series in samples.series:
            if series.name in _TRAIN_METRICS:
                worker = tuple(series.labels.get(name, "")[:_MAX_LABEL] for name in _TRAIN_LABELS)
                if worker in found[node] or len(found[node]) < _MAX_RANKS:
                    by_name = found[node].setdefault(worker, defaultdict(dict))
                    by_name[series.name].update(_points(series, samples))
    return {
        node: [_rank(worker, by_name) for worker, by_name in workers.items() if by_name[_REPORT]]
        for node, workers in found.items()
    }


def _rank(worker: tuple[str, ...], by_name: dict[str, Points]) -> TrainRank:
    reports = by_name[_REPORT]
    total, first_ms = max(reports.values()), min(reports)
    last_ms = max(at_ms for at_ms, value in reports.items() if value == total)  # Ray sets it to 0 at the end
    return TrainRank(
        run_id=worker[0],
        rank=worker[1],
        span_s=(last_ms - first_ms) / 1000 + reports[first_ms],
        waited_s=max((by_name[_WAIT] or reports).values()),
        stored_s=max(by_name[_STORE].values(), default=0.0),
    )


WANTED_METRICS = {
    "ray_node_mem_used", "ray_node_mem_total", "ray_node_cgroup_mem_used", "ray_node_cgroup_mem_total",
    "ray_object_store_used_memory", "ray_object_store_available_memory", "ray_spill_manager_objects_bytes",
    "ray_data_iter_total_blocked_seconds", "ray_data_iter_user_seconds", *_TRAIN_METRICS,
    _RESOURCES, "ray_node_cpu_utilization", "ray_node_gpus_utilization", "ray_memory_manager_worker_eviction_total",
}  # fmt: skip


def _of_node(by_name: dict[str, Points], ranks: list[TrainRank], available: dict[str, Points]) -> NodeSamples:
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
        data_used_s=max(by_name["ray_data_iter_user_seconds"].values(), default=0.0),
        train_ranks=ranks,
        available={name: sorted(values.items()) for name, values in available.items()},
        oom_kills=max(by_name["ray_memory_manager_worker_eviction_total"].values(), default=0.0),
    )


def _pairs(used: Points, total: Points) -> list[MemorySample]:
    return [MemorySample(at, value, total[at]) for at, value in sorted(used.items()) if total.get(at)]
