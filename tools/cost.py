"""Cost of 1,000 node-hours in an object store: `python tools/cost.py [--put PRICE] [--gb PRICE]`.

Without prices, prints the table of docs/how-to/kubernetes/sizing.md. Prices are in US dollars, per 1,000 writes and
per gigabyte and month.
"""

import argparse
from typing import NamedTuple


class Price(NamedTuple):
    """List prices of a store, noted in November 2026 from published comparisons of price pages, not from an invoice."""

    store: str
    page: str
    per_1000_puts: float
    per_gb_month: float


PRICES = (
    Price("S3 Standard, us-east-1", "Amazon S3 pricing", 0.005, 0.023),
    Price("Cloud Storage Standard, regional, US", "Cloud Storage pricing", 0.005, 0.020),
    Price("Azure Blob hot, LRS, East US", "Azure Blob Storage pricing", 0.005, 0.018),
)
NODE_HOURS = 1000
METRICS_PUTS = 60
"""Number of PUTs per hour for the metrics of one node."""
TASKS_PER_SECOND = 10
BYTES_PER_TASK = 600
"""Compressed size of the events of one task."""


def packs_per_hour(log_interval_s: float) -> float:
    """Return the number of PUTs per hour for the logs of a node that logs all the time."""
    return 3600 / log_interval_s


def puts(log_interval_s: float | None) -> float:
    """Return the PUTs of 1,000 node-hours; without an interval, of nodes that log nothing."""
    return NODE_HOURS * (METRICS_PUTS + (packs_per_hour(log_interval_s) if log_interval_s else 0))


def gigabytes() -> float:
    return NODE_HOURS * 3600 * TASKS_PER_SECOND * BYTES_PER_TASK / 1e9


def dollars(amount: float) -> str:
    return f"${amount:.2f}"


def table(prices: tuple[Price, ...]) -> str:
    """Return the costs as a table of Markdown."""
    head = (
        "| store (price page) | 1,000 PUTs | GB and month | busy, 5 s | busy, 30 s | quiet | storage |",
        "|---|---|---|---|---|---|---|",
    )
    rows = (
        f"| {price.store} ({price.page}) | ${price.per_1000_puts:.4f} | ${price.per_gb_month:.3f} | "
        + " | ".join(dollars(puts(interval) / 1000 * price.per_1000_puts) for interval in (5, 30, None))
        + f" | {dollars(gigabytes() * price.per_gb_month)} |"
        for price in prices
    )
    return "\n".join((*head, *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of 1,000 node-hours in an object store.")
    parser.add_argument("--put", type=float, metavar="PRICE", help="price of 1,000 writes, in dollars")
    parser.add_argument("--gb", type=float, metavar="PRICE", help="price of a gigabyte and month, in dollars")
    arguments = parser.parse_args()
    if (arguments.put is None) != (arguments.gb is None):
        parser.error("set both --put and --gb, or neither")
    own = (Price("your store", "your prices", arguments.put, arguments.gb),) if arguments.put is not None else PRICES
    print(table(own))


if __name__ == "__main__":
    main()
