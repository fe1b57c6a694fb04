"""Prices of resource hours, from `--price cpu=0.04,gpu=2.5`."""

from collections.abc import Iterable

import msgspec

from rayhistory.runs.session_summary import JobHours, SessionSummary


class Prices(msgspec.Struct, frozen=True):
    """The price of one hour of a CPU, a GPU and a GiB of memory. Without prices, no costs are shown."""

    cpu: float | None = None
    gpu: float | None = None
    memory: float | None = None

    def cost(self, runs: Iterable[SessionSummary | JobHours]) -> float | None:
        """Return the cost of all allocated resources; None without prices."""
        if self == Prices():
            return None
        return round(sum(self._cost(each) for each in runs), 4)

    def _cost(self, hours: SessionSummary | JobHours) -> float:
        allocated = (hours.cpu.allocated, hours.gpu.allocated, hours.memory.allocated)
        return sum(
            amount * (price or 0.0) for amount, price in zip(allocated, (self.cpu, self.gpu, self.memory), strict=True)
        )


def prices_of(parts: Iterable[str]) -> Prices:
    """Return the prices in the setting `--price`, which was checked when it was parsed."""
    return Prices(**{name: float(amount) for name, _, amount in (part.partition("=") for part in parts)})
