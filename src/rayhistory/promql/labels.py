"""Labels of one series, as sorted pairs."""

from collections.abc import Iterable
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted pairs without empty values, including `__name__`."""

METRIC_NAME = "__name__"


def labels_of(pairs: dict[str, str] | Iterable[tuple[str, str]]) -> Labels:
    items = pairs.items() if isinstance(pairs, dict) else pairs
    return tuple(sorted((name, value) for name, value in items if value))


def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != METRIC_NAME)


def metric_name(labels: Labels) -> str:
    return next((value for name, value in labels if name == METRIC_NAME), "")


def format_labels(labels: Labels) -> str:
    """Return labels as Prometheus prints them in messages."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"
