"""Make small fixtures of recorded cases: `python -m failures.fixtures CASE… --from DIRECTORY`.

A fixture is a tar file of a store with what a diagnosis reads: events, dashboard responses, records, stderr of workers,
the driver's output and a few metrics. Paths of the machine that recorded it are replaced.
"""

import argparse
import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec

from rayhistory.diagnosis.node_samples import WANTED_METRICS
from rayhistory.metrics.samples import decode, encode
from rayhistory.sessions import SessionRef
from support.paths import DATA, ROOT

FIXTURES = DATA / "failures"
_REPLACED = {
    str(ROOT / "tests/failures/jobs"): "/app",
    str(ROOT / ".venv"): "/opt/venv",
    str(ROOT): "/opt/project",
    sys.base_prefix: "/usr/local",
    tempfile.gettempdir(): "/tmp",
}
_SKIPPED = ("/index/", "/packs/", "/logs/default/", "/dashboards/")


def make_fixture(case: str, recordings: Path) -> Path:
    """Write `tests/data/failures/<case>.tar.gz`."""
    recording = recordings / case
    store = recording / "store"
    FIXTURES.mkdir(parents=True, exist_ok=True)
    target = FIXTURES / f"{case}.tar.gz"
    with target.open("wb") as sink, gzip.GzipFile(fileobj=sink, mode="wb", mtime=0, filename="") as packed, \
            tarfile.open(fileobj=packed, mode="w") as tar:  # fmt: skip
        _add(tar, "session.json", (recording / "session.json").read_bytes())
        for path in sorted(path for path in store.rglob("*") if path.is_file()):
            key = str(path.relative_to(store))
            if content := _content(key, path.read_bytes()):
                _add(tar, f"store/{key}", content)
    return target


def _content(key: str, data: bytes) -> bytes | None:
    """Return what the fixture has of an object; None if a diagnosis does not need it."""
    name = key.rpartition("/")[2]
    if any(part in f"/{key}" for part in _SKIPPED):
        return None
    if "/logs/" in key and not (
        name.startswith("job-driver-") or (name.startswith("worker-") and name.endswith(".err"))
    ):
        return None
    if name.endswith(".msgpack.zst"):
        samples = decode(data)
        return encode(msgspec.structs.replace(samples, series=[s for s in samples.series if s.name in WANTED_METRICS]))
    if name.endswith(".gz"):
        return gzip.compress(_replaced(gzip.decompress(data)), mtime=0)
    return _replaced(data)


def _replaced(data: bytes) -> bytes:
    for old, new in _REPLACED.items():
        data = data.replace(old.encode(), new.encode())
    return data


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def unpack(case: str, directory: Path) -> SessionRef:
    """Unpack a fixture: the store is at `directory/store`."""
    with tarfile.open(FIXTURES / f"{case}.tar.gz") as tar:
        tar.extractall(directory, filter="data")
    return msgspec.json.decode((directory / "session.json").read_bytes(), type=SessionRef)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--from", dest="recordings", type=Path, required=True)
    arguments = parser.parse_args()
    for case in arguments.cases:
        path = make_fixture(case, arguments.recordings)
        print(f"{path.name}: {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
