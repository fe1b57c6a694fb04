"""The servers that this user started on this machine, so that other commands find them on any port."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

_FOLDER = "servers"
_MAX_SERVERS = 16


@contextmanager
def register_server(cache_dir: str, port: int, scheme: str) -> Iterator[None]:
    """Register a server of this process while the context is open. A read-only cache directory is not an error."""
    path = Path(cache_dir) / _FOLDER / str(port)
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_dead_servers(path.parent)
        path.write_text(f"{os.getpid()} {scheme}")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def registered_servers(cache_dir: str) -> list[str]:
    """Return the URLs of registered servers whose processes still run, the newest first."""
    with suppress(OSError):
        paths = sorted((Path(cache_dir) / _FOLDER).iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        return list(islice((url for path in paths if (url := _url(path))), _MAX_SERVERS))
    return []


def _forget_dead_servers(folder: Path) -> None:
    """Delete the files of servers that were killed. Other files stay: a server may be writing one of them."""
    for path in folder.iterdir():
        with suppress(OSError, ValueError, OverflowError):
            try:
                os.kill(int(path.read_text().split()[0]), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except IndexError:
                continue


def _url(path: Path) -> str | None:
    try:
        pid, scheme = path.read_text().split()
        os.kill(int(pid), 0)  # a stale port may belong to a program of somebody else
        return f"{scheme}://127.0.0.1:{int(path.name)}"
    except (OSError, ValueError, OverflowError):
        return None
