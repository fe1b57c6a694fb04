"""Prices of resource hours, from `--price cpu=0.04,gpu=2.5`."""

from collections.abc import Iterable

import msgspec

from rayhistory.runs.session_summary import SessionSummary


class Prices(msgspec.Struct, frozen=True):
    """The price of one hour of a CPU, a GPU and a GiB of memory. Without any, there are no costs."""

    cpu: float | None = None
    gpu: float | None = None
    memory: float | None = None

    def cost(self, sessions: Iterable[SessionSummary]) -> float | None:
        """Return the price of everything that was allocated; None without prices."""
        if self == Prices():
            return None
        return round(sum(self._session_cost(session) for session in sessions), 4)

    def _session_cost(self, session: SessionSummary) -> float:
        hours = (session.cpu.allocated, session.gpu.allocated, session.memory.allocated)
        return sum(
            amount * (price or 0.0) for amount, price in zip(hours, (self.cpu, self.gpu, self.memory), strict=True)
        )


def prices_of(parts: Iterable[str]) -> Prices:
    """Return the prices of a setting, which was checked when it was parsed."""
    return Prices(**{name: float(amount) for name, _, amount in (part.partition("=") for part in parts)})
