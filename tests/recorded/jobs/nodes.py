"""A job on three nodes: each runs tasks and an actor, and what one makes is used on the next."""

import sys

import ray

NODES = ("head", "lost", "kept")


@ray.remote(num_cpus=0)
def make(node: str, number: int) -> list[int]:
    print(f"making {number} on {node}", flush=True)
    return [number] * 50_000


@ray.remote(num_cpus=0, max_retries=0)
def add(node: str, made: list[int]) -> int:
    if sum(made) == 150_000:
        raise ValueError(f"{node} does not like it")
    return sum(made)


@ray.remote(num_cpus=0)
class Keeper:
    def __init__(self, node: str) -> None:
        self.node, self.sums = node, list[int]()

    def keep(self, value: int) -> int:
        print(f"{self.node} keeps {value}", flush=True)
        self.sums.append(value)
        return len(self.sums)


ray.init(address=sys.argv[1], log_to_driver=False)
keepers = {node: Keeper.options(resources={node: 1}).remote(node) for node in NODES}
for number, node in enumerate(NODES * 3):
    made = make.options(resources={node: 1}).remote(node, number)
    after = NODES[(number + 1) % 3]
    total = add.options(resources={after: 1}).remote(after, made)
    try:
        ray.get(keepers[node].keep.remote(total))
    except ValueError as error:
        print(error, flush=True)
