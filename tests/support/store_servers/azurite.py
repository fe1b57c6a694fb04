"""Azurite, Microsoft's emulator of Azure Blob, from npm. Installed once, beside the virtual environment."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storeservers.processes import answers, free_port, started

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public
_PLACE = Path(sys.prefix) / "azurite"


@contextmanager
def azurite(directory: Path) -> Iterator[str]:
    """The URL of its account."""
    port = free_port()
    command = [
        "node", _installed(), "--blobHost", "127.0.0.1", "--blobPort", str(port),
        "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with started(command, directory, lambda: answers(port)):
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"


def connection_string(url: str) -> str:
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint={url};"


def _installed() -> Path:
    main = _PLACE / "node_modules/azurite/dist/src/blob/main.js"
    _PLACE.mkdir(exist_ok=True)
    with (_PLACE / "lock").open("w") as lock:  # two runs of the tests may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not main.exists():
            if shutil.which("npm") is None:
                pytest.skip("Azurite needs npm")
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", _PLACE, f"azurite@{VERSION}"]
            subprocess.run(command, check=True, capture_output=True)
    return main
