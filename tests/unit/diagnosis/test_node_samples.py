"""Metrics that a job chooses: any name, label and value."""

import math
import random
from array import array

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.node_samples import WANTED_METRICS, node_samples
from rayhistory.diagnosis.session_facts import SessionFacts
from rayhistory.metrics.samples import SampledSeries, Samples

NODE = "ab" * 28
TIMES = [0, 2_000, 100_000, 102_000]
VALUES = (math.inf, -math.inf, math.nan, 1e308, -1e308, 2.0**63, -5.0, 0.0, 5.0, 100.0)


@pytest.mark.parametrize("seed", range(30))
def test_diagnosis_bears_any_values(seed: int) -> None:
    """One infinite value made the diagnosis of the whole session fail."""
    rng = random.Random(seed)
    series = [
        SampledSeries(name, labels, array("d", rng.choices(VALUES, k=len(TIMES))).tobytes())
        for name in sorted(WANTED_METRICS)
        for number in range(3)
        for labels in [{"ray_train_worker_world_rank": str(number), "State": "AVAILABLE", "Name": "CPU"}]
        if rng.random() < 0.5
    ]
    samples = node_samples([(NODE, Samples(times=TIMES, series=series))])
    assert all(finding.headline.isprintable() for finding in diagnose(SessionFacts(samples=samples)).findings)


def test_values_that_are_no_measurements_are_left_out() -> None:
    values = array("d", [math.inf, 5.0, 1e308, 7.0]).tobytes()
    samples = node_samples(
        [(NODE, Samples(times=TIMES, series=[SampledSeries("ray_node_cpu_utilization", {}, values)]))]
    )
    assert samples[NODE].cpu == [(2_000, 5.0), (102_000, 7.0)]
