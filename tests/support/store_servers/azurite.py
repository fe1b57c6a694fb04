"""Azurite, Microsoft's Azure Blob emulator from npm, installed once into the virtual environment."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.store_servers.processes import free_port, is_listening, server_process

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public
_INSTALL_DIR = Path(sys.prefix) / "azurite"


@contextmanager
def azurite(directory: Path) -> Iterator[str]:
    """Start Azurite and yield the URL of its account."""
    port = free_port()
    command: list[str | Path] = [
        "node", install(), "--blobHost", "127.0.0.1", "--blobPort", str(port),
        "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with server_process(command, directory, lambda: is_listening(port)):
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"


def connection_string(url: str) -> str:
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={url};"


def install() -> Path:
    """Install Azurite if it is missing; return its program. `make test` calls this while other tests run."""
    main = _INSTALL_DIR / "node_modules/azurite/dist/src/blob/main.js"
    _INSTALL_DIR.mkdir(exist_ok=True)
    with (_INSTALL_DIR / "lock").open("w") as lock:  # concurrent test runs
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not main.exists():
            if shutil.which("npm") is None:
                pytest.skip("Azurite needs npm")
            command: list[str | Path] = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                _INSTALL_DIR,
                f"azurite@{VERSION}",
            ]
            subprocess.run(command, check=True, capture_output=True)
    return main


if __name__ == "__main__":
    install()
