"""Every fuzz target on its seeds, on inputs that once crashed it, and on hundreds of mutated inputs."""

import random
from pathlib import Path

import pytest

from fuzz.mutate import mutate
from fuzz.targets import TARGETS

CRASHES = Path(__file__).with_name("crashes")
MUTATIONS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_target_accepts_its_seeds(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)


@pytest.mark.parametrize("path", sorted(CRASHES.rglob("*.bin")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_earlier_crash_does_not_return(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_seeds_do_not_crash(name: str) -> None:
    """The inputs are the same in every run; `make fuzz` searches for others, guided by coverage."""
    target, rng = TARGETS[name], random.Random(name)
    seeds = target.seeds()
    for number in range(MUTATIONS):
        data = mutate(rng.choice(seeds), rng)
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"input {number} of {name}: {data[:2000]!r}") from error
