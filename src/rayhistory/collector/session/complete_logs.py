"""Move logs from KubeRay's `prev-logs` to `persist-complete-logs` when they are stored.

Jobs can write to both directories. So every step is relative to an open directory and follows no link, and the move
cannot leave Ray's temporary directory.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

PREV_LOGS = "prev-logs"
COMPLETE_LOGS = "persist-complete-logs"
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_to_complete_logs(ray_tmp_root: Path, session: str, node: str) -> None:
    """Move `prev-logs/<session>/<node>` to `persist-complete-logs/<session>/<node>`. Log a failure."""
    try:
        with (
            _opened(None, str(ray_tmp_root)) as root,
            _opened(root, PREV_LOGS) as before,
            _opened(before, session) as source,
            _opened(root, COMPLETE_LOGS, create=True) as after,
            _opened(after, session, create=True) as target,
        ):
            os.rename(node, node, src_dir_fd=source, dst_dir_fd=target)
            with contextlib.suppress(OSError):  # other nodes of the session are still there
                os.rmdir(session, dir_fd=before)
    except OSError as error:
        log.warning(
            "cannot move uploaded logs to persist-complete-logs, leaving them in place",
            extra={"session": session, "node": node, "reason": str(error)},
        )


@contextlib.contextmanager
def _opened(parent: int | None, name: str, *, create: bool = False) -> Iterator[int]:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    descriptor = os.open(name, _OPEN_FLAGS if parent is not None else _OPEN_FLAGS & ~os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
