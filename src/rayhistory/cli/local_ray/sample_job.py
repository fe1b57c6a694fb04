"""A small training pipeline with data for every page of the dashboard.

It needs only `ray`, takes about 15 seconds on two cores and is deterministic. It has tasks, nested tasks, a retry, a
failing task, an actor that crashes and restarts, a detached actor, a placement group, and output on both streams.
`--fail` makes the job fail with exit code 3.
"""

import argparse
import os
import sys
import time
import traceback
from typing import Any, TypeAlias

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SHARDS = 8
EPOCHS = 3
CORRUPT_SHARD = 5

Shard = list[int]
Shards: TypeAlias = "list[ray.ObjectRef[Shard]]"
Tracker: TypeAlias = Any  # a handle to the actor, whose methods Ray's types do not know


class PipelineError(Exception):
    """The exception that makes the whole job fail."""


@ray.remote(num_cpus=0)
class ExperimentTracker:
    """A detached actor, which outlives the job like a tracking service."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def record(self, name: str, value: float) -> None:
        print(f"{name} = {value:.4f}", flush=True)
        self.metrics[name] = value

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]


@ray.remote(num_cpus=0.5)
def load_shard(index: int) -> Shard:
    time.sleep(0.2)
    print(f"loaded shard {index} of run {os.environ['TRAINING_RUN']}", flush=True)
    return [(index * 7919 + row * 104_729) % 1000 for row in range(200)]


@ray.remote(num_cpus=0.5)
def tokenize(rows: Shard) -> Shard:
    time.sleep(0.1)
    return [value % 97 for value in rows]


@ray.remote(num_cpus=0.5)
def preprocess_shard(index: int, shard: Shard) -> Shard:
    """Tokenize each half in a nested task."""
    half = len(shard) // 2
    if index % 4 == 3:
        print(f"shard {index}: 3 rows without a label were dropped", file=sys.stderr, flush=True)
    parts = ray.get([tokenize.remote(shard[:half]), tokenize.remote(shard[half:])])
    return [token for part in parts for token in part]


@ray.remote(num_cpus=0.5, max_retries=3, retry_exceptions=True)
def download_vocabulary(tracker: Tracker, run: str) -> int:
    """Fail in the first attempt and succeed in the second."""
    attempt: int = ray.get(tracker.count.remote(f"{run}: download"))
    time.sleep(0.5)
    if attempt == 1:
        raise ConnectionError("vocabulary.example: connection reset by peer")
    print(f"vocabulary downloaded at attempt {attempt}", flush=True)
    return 97


@ray.remote(num_cpus=0.5, max_retries=0)
def validate_shard(index: int, shard: Shard) -> int:
    time.sleep(0.3)
    if index == CORRUPT_SHARD:
        raise ValueError(f"shard {index}: checksum mismatch in row {shard[0]}")
    return len(shard)


@ray.remote(num_cpus=1, max_restarts=1, max_task_retries=1)
class Trainer:
    """Crashes once, in the second epoch, and continues from the driver's checkpoint."""

    def __init__(self, tracker: Tracker, run: str, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.starts: int = ray.get(tracker.count.remote(f"{run}: trainer"))
        print(f"trainer started, time {self.starts}", flush=True)

    def train_epoch(self, epoch: int, checkpoint: float, shards: list[Shard]) -> float:
        time.sleep(1.2)
        if epoch == 2 and self.starts == 1:
            print("out of device memory, giving up", file=sys.stderr, flush=True)
            # Let the log and the events leave this process.
            time.sleep(1.2)
            os._exit(1)
        seen = sum(map(sum, shards)) % self.vocabulary
        loss = checkpoint * (0.6 + seen / (10 * self.vocabulary))
        print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
        return loss


@ray.remote(num_cpus=0.5)
def evaluate(fold: int, loss: float, shard: Shard) -> float:
    time.sleep(0.4 + 0.1 * (fold % 3))
    return max(0.0, 1.0 - loss) + (sum(shard) % 10) / 1000


def prepare(shard_count: int) -> Shards:
    loaded = [load_shard.remote(index) for index in range(shard_count)]
    print(f"loading {shard_count} shards", flush=True)
    return [preprocess_shard.remote(index, shard) for index, shard in enumerate(loaded)]


def validate(shards: Shards) -> Shards:
    """Return the valid shards. One is corrupt and is skipped."""
    checks = [validate_shard.remote(index, shard) for index, shard in enumerate(shards)]
    good = []
    for index, check in enumerate(checks):
        try:
            ray.get(check)
        except ValueError as error:
            print(f"skipping shard {index}: {str(error).splitlines()[-1]}", file=sys.stderr, flush=True)
        else:
            good.append(shards[index])
    return good


def train(group: PlacementGroup, tracker: Tracker, run: str, vocabulary: int, shards: list[Shard]) -> float:
    trainer = Trainer.options(  # type: ignore[attr-defined]
        name="trainer",
        scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=group),
    ).remote(tracker, run, vocabulary)
    loss = 1.0
    for epoch in range(1, EPOCHS + 1):
        loss = ray.get(trainer.train_epoch.remote(epoch, loss, shards))
        tracker.record.remote(f"loss/epoch-{epoch}", loss)
        print(f"epoch {epoch}/{EPOCHS}: loss {loss:.4f}", flush=True)
    return loss


def run_pipeline(scale: int, run: str) -> float:
    tracker = ExperimentTracker.options(  # type: ignore[attr-defined]
        name="experiment-tracker", namespace="tracking", lifetime="detached", get_if_exists=True
    ).remote()
    shards = prepare(SHARDS * scale)
    vocabulary = download_vocabulary.remote(tracker, run)
    good = validate(shards)

    group = placement_group([{"CPU": 1}], strategy="PACK", name="training")
    ray.get(group.ready())
    try:
        loss = train(group, tracker, run, ray.get(vocabulary), ray.get(good))
    finally:
        remove_placement_group(group)

    scores = ray.get([evaluate.remote(fold, loss, shard) for fold, shard in enumerate(good)])
    accuracy = sum(scores) / len(scores)
    ray.get(tracker.record.remote("accuracy", accuracy))
    print(f"accuracy over {len(scores)} folds: {accuracy:.4f}", flush=True)
    return accuracy


def publish(accuracy: float, threshold: float) -> None:
    if accuracy < threshold:
        raise PipelineError(f"accuracy {accuracy:.4f} is below {threshold:.4f}, the model is not published")
    print("model published", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fail", action="store_true", help="end with an exception and exit code 3")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="N times as many tasks")
    args = parser.parse_args()
    ray.init(runtime_env={"env_vars": {"TRAINING_RUN": "sample"}})
    accuracy = run_pipeline(args.scale, ray.get_runtime_context().get_job_id())
    try:
        publish(accuracy, threshold=0.99 if args.fail else 0.5)
    except PipelineError:
        traceback.print_exc()
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
