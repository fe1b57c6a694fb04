"""Port numbers for a child process that cannot be told to choose for itself.

Between finding a free port and the child listening on it, seconds pass in which another program, such as a
second cluster that is being started, can find the same one. So the port stays bound, without listening: who
looks for a free port does not get it, but the child, like every server, says SO_REUSEADDR and does.
"""

import random
import socket
from collections.abc import Sequence

from rayhistory.errors import RayHistoryError

# Above those that `ray start` keeps for workers, below those that the kernel gives to outgoing connections.
_RANGE = range(20_000, 32_768)


class ReservedPorts:
    """`names[i]` is the purpose of a port, and its key."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sockets = [_bind_any() for _ in names]
        self._ports = {name: int(bound.getsockname()[1]) for name, bound in zip(names, self._sockets, strict=True)}

    def __getitem__(self, name: str) -> int:
        return self._ports[name]

    def release(self) -> None:
        for bound in self._sockets:
            bound.close()

    def stolen(self) -> bool:
        """After the end of the child: whether somebody else has one of the ports."""
        self.release()
        for port in self._ports.values():
            try:
                _bind(port).close()
            except OSError:
                return True
        return False


def _bind_any() -> socket.socket:
    for port in random.sample(_RANGE, len(_RANGE)):
        try:
            bound = _bind(port)
        except OSError:
            continue
        # Only now: with it, the bind would also have succeeded on a port that another reservation holds.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return bound
    raise RayHistoryError(f"all ports from {_RANGE.start} to {_RANGE.stop - 1} are in use")


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        raise
    return bound
