"""A real Prometheus with an empty database: from PATH, else from Debian's package, unpacked once below `build/`."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.paths import ROOT

_UNPACKED = ROOT / "build" / "prometheus"
_START_TIMEOUT_S = 60
_CONFIG = "global: {scrape_interval: 15s}\nscrape_configs: []\n"


def binary() -> Path:
    if found := shutil.which("prometheus"):
        return Path(found)
    unpacked = _UNPACKED / "usr/bin/prometheus"
    if not unpacked.exists():
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "prometheus"], cwd=_UNPACKED, check=True, capture_output=True)
        (package,) = _UNPACKED.glob("prometheus_*.deb")
        subprocess.run(["dpkg", "-x", package, _UNPACKED], check=True)
    return unpacked


@contextmanager
def running_prometheus(work: Path, port: int) -> Iterator[str]:
    """Run Prometheus on loopback, and yield its address."""
    (work / "prometheus.yml").write_text(_CONFIG)
    address = f"http://127.0.0.1:{port}"
    command = [
        binary(),
        f"--config.file={work}/prometheus.yml",
        f"--storage.tsdb.path={work}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=100y",
    ]
    with (work / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{address}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("Prometheus does not start: see prometheus.log")
