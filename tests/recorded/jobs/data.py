"""A job of Ray Data: two datasets, each of a few blocks that pass through several operators."""

import numpy as np
import ray

ray.init()
numbers = ray.data.range(2000, override_num_blocks=4)
doubled = numbers.map_batches(lambda batch: {"id": batch["id"] * 2}, batch_size=500).materialize()
print(f"{doubled.count()} rows are doubled", flush=True)
evens = doubled.filter(lambda row: row["id"] % 4 == 0)
roots = evens.map(lambda row: {"root": float(np.sqrt(row["id"]))}).materialize()
print(f"{roots.count()} rows are left", flush=True)
