"""`rayhistory store check` reports damage with exit code 1; `--repair` leaves a sound store."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from rayhistory.cli import index
from rayhistory.cli.archive import store_commands
from rayhistory.sessions import Layout
from support.cli_call import Command
from support.counted_names import PATH
from support.packed_node import PREFIX, PackedNode
from support.paths import ROOT
from support.recorded_sample import REF, settings_for, store_sample

pytestmark = pytest.mark.slow
LAYOUT = Layout()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    store_sample(settings_for(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    for module in (index, store_commands):
        monkeypatch.setattr(module, "PRODUCTS", (PATH + "COUNTED_NAMES",))
    made = Command(tmp_path, monkeypatch, capfd)
    made.good("index")
    return made


def test_sound_store_passes(command: Command) -> None:
    assert command.good("store", "check", "--checksums").startswith("1 session checked: 0 damaged files")


def test_repair_rebuilds_damaged_files_and_deletes_unused_ones(command: Command, tmp_path: Path) -> None:
    prefix = tmp_path / "store" / LAYOUT.index_prefix(REF)
    next(prefix.glob("1-*/actors.0.parquet")).unlink()
    (product,) = prefix.glob("products/counted/1-*/names.json")
    product.write_bytes(b"{" * product.stat().st_size)
    orphan = prefix / "7-killed" / "tasks.0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"x" * 1000)
    old = time.time() - 7200
    os.utime(orphan, (old, old))

    found = command("store", "check", "--checksums")
    assert found.code == 1
    for part in (
        "tables  missing_file",
        "counted  wrong_checksum",
        "tables  unused",
        "2 damaged files",
        "1000 B could",
    ):
        assert part in found.out
    repaired = command.good("store", "check", "--checksums", "--repair")
    assert "0 damaged files, 2 repaired, 1000 B freed" in repaired
    assert not orphan.exists()
    assert command.good("store", "check", "--checksums").startswith("1 session checked: 0 damaged files, 0 repaired")


def test_unknown_session_is_a_wrong_call(command: Command) -> None:
    assert "nothing" in command.bad("store", "check", "default/nothing")


def test_compact_moves_old_packs_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_sample(settings_for(tmp_path))
    node = PackedNode(tmp_path / "node")
    for _ in range(300):
        node.append("raylet.out", 2)
        node.flush()
    packs = tmp_path / "store" / LAYOUT.node_packs_prefix(REF, "ab" * 28)
    shutil.copytree(node.home / "store" / PREFIX, packs)
    command = Command(tmp_path, monkeypatch, capfd)
    logs = ("logs", "--file", "raylet.out", "--node", "ab" * 28)
    before = command.good(*logs)
    assert command.good("store", "compact") == "1 session compacted\n"  # too few
    assert "packs moved into 1 object" in command.good("store", "compact", "--min-packs", "10")
    assert len(list(packs.rglob("*.pack"))) < 260
    assert command.good(*logs) == before != ""


def test_session_that_cannot_be_compacted_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_sample(settings_for(tmp_path))
    node = PackedNode(tmp_path / "node")
    for _ in range(300):
        node.append("raylet.out", 2)
        node.flush()
    shutil.copytree(node.home / "store" / PREFIX, tmp_path / "store" / LAYOUT.node_packs_prefix(REF, "ab" * 28))
    command = Command(tmp_path, monkeypatch, capfd)
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        result = command("store", "compact", "--min-packs", "10")
    assert (result.code, "not compacted" in result.out) == (1, True)
