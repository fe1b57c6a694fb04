"""The seeds of every fuzzing target, what once broke one, and some hundreds of inputs that are nearly right."""

import random
from pathlib import Path

import pytest

from fuzz.mutate import mutated
from fuzz.targets import TARGETS

FOUND = Path(__file__).with_name("found")
GENERATED = 300


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_really_there_is_read(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)


@pytest.mark.parametrize("path", sorted(FOUND.rglob("*.bin")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_broke_a_reader_does_so_no_more(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_nearly_right_breaks_nothing(name: str) -> None:
    """The same inputs each time; `make fuzz` looks for others, guided by what they reach in the code."""
    target, dice = TARGETS[name], random.Random(name)
    seeds = target.seeds()
    for number in range(GENERATED):
        data = mutated(dice.choice(seeds), dice)
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"input {number} of {name}: {data[:2000]!r}") from error
