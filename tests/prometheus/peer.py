"""A real Prometheus with an empty database: built from source once, else from Debian's package, which is version 2."""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.paths import ROOT

VERSION = "3.15.0"
MODULE = ROOT / "tests/prometheus/server"
_UNPACKED = ROOT / "build" / "prometheus"
_START_TIMEOUT_S = 60
_CONFIG = "global: {scrape_interval: 15s}\nscrape_configs: []\n"


def binary() -> Path:
    """Return Prometheus 3 if Go is installed, else Debian's Prometheus 2; the first build takes some minutes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    target = cache / f"rayhistory-tests/prometheus-{VERSION}/prometheus"
    if target.exists():
        return target
    if shutil.which("go"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / "lock").open("w") as lock:  # for concurrent test runs
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.exists() or _build(target):
                return target
    return _debian()


def _build(target: Path) -> bool:
    """Build from source; return False if that is impossible, for example without a network."""
    version = f"-X github.com/prometheus/common/version.Version={VERSION}"
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-tags=netgo,remove_all_sd", f"-ldflags=-s -w {version}",
               "-o", f"{target}.partial", "github.com/prometheus/prometheus/cmd/prometheus"]  # fmt: skip
    done = subprocess.run(
        command, cwd=MODULE, env=os.environ | {"CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"Prometheus {VERSION} could not be built, using Debian's:\n{done.stderr[-1000:]}")
        return False
    Path(f"{target}.partial").rename(target)
    return True


def _debian() -> Path:
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
    command: list[str | Path] = [
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
