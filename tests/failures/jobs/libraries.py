"""Jobs of Ray Train and Ray Data that succeed, and of which some take longer than they need."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import ray

_RANKS = 3


def slow_rank() -> None:
    _train({"steps": 14, "slow_rank_s": 4.0})


def slow_checkpoint_storage() -> None:
    _train({"steps": 11, "storing_s": 6.0})


def even_ranks() -> None:
    _train({"steps": 30})


def waits_for_data() -> None:
    for _ in ray.data.range(60, override_num_blocks=60).map(_prepare, num_cpus=1).iter_batches(batch_size=1):
        time.sleep(0.05)


def data_is_ready() -> None:
    for _ in ray.data.range(60, override_num_blocks=4).materialize().iter_batches(batch_size=1):
        time.sleep(0.4)


def _prepare(row: dict[str, int]) -> dict[str, int]:
    time.sleep(2)
    return row


def _train(config: dict[str, float]) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    scaling = ScalingConfig(num_workers=_RANKS, resources_per_worker={"CPU": 0.5})
    with tempfile.TemporaryDirectory() as storage:
        DataParallelTrainer(
            _loop, train_loop_config=config, scaling_config=scaling, run_config=RunConfig(storage_path=storage)
        ).fit()


def _loop(config: dict[str, float]) -> None:
    from ray import train

    def store(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
        time.sleep(config.get("storing_s", 0.0))
        storage = train.get_context().get_storage()
        path = f"{storage.experiment_fs_path}/{name}"
        shutil.copytree(checkpoint.path, path, dirs_exist_ok=True)
        return train.Checkpoint(path, storage.storage_filesystem)

    rank = train.get_context().get_world_rank()
    for step in range(int(config["steps"])):
        time.sleep(1 + (config.get("slow_rank_s", 0.0) if rank == 1 else 0.0))
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / f"state-{rank}").write_text("weights")
            train.report({"step": step}, train.Checkpoint.from_directory(directory), checkpoint_upload_fn=store)


if __name__ == "__main__":
    ray.init()
    globals()[sys.argv[1]]()
