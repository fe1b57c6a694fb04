"""Free ports for a child process that cannot choose its own.

Between finding a free port and the child listening on it, another program could take the port. So the port stays bound
without listening. Other programs do not get it, but the child does, because servers set SO_REUSEADDR.
"""

import random
import socket
from collections.abc import Sequence

from rayhistory.errors import RayHistoryError

# Above the worker ports of `ray start`, below the kernel's ephemeral ports.
_PORT_RANGE = range(20_000, 32_768)


class ReservedPorts:
    """Reserves one port for each of the given names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sockets = [_bind_any() for _ in names]
        self._ports = {name: int(bound.getsockname()[1]) for name, bound in zip(names, self._sockets, strict=True)}

    def __getitem__(self, name: str) -> int:
        return self._ports[name]

    def release(self) -> None:
        for bound in self._sockets:
            bound.close()

    def any_taken(self) -> bool:
        """Return whether another program uses one of the ports. Call it only after the child has exited."""
        self.release()
        for port in self._ports.values():
            try:
                _bind(port).close()
            except OSError:
                return True
        return False


def _bind_any() -> socket.socket:
    for port in random.sample(_PORT_RANGE, len(_PORT_RANGE)):
        try:
            bound = _bind(port)
        except OSError:
            continue
        # Set after bind: before, bind would succeed on a port that another reservation holds.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return bound
    raise RayHistoryError(f"all ports from {_PORT_RANGE.start} to {_PORT_RANGE.stop - 1} are in use")


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        raise
    return bound
