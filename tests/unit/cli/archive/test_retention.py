"""`rayhistory retention` removes the rows of runs with their sessions."""

import asyncio
from pathlib import Path

import pytest

from rayhistory.cli.main import build_parser
from rayhistory.runs.run_compaction import RunCompactor
from rayhistory.runs.run_table import RunTable
from rayhistory.settings import CLI, resolve
from rayhistory.storage.local import LocalStore
from support.generated_runs import LAYOUT, announce, generated, identities, store_runs


def remove_old_sessions(directory: Path, *flags: str) -> int:
    argv = ["retention", "--store", str(directory / "store"), *flags]
    arguments = build_parser(argv).parse_args(argv)
    settings, _ = resolve(CLI, vars(arguments), {"RAYHISTORY_CACHE_DIR": str(directory / "cache")})
    code: int = arguments.command_module.run(arguments, settings)
    return code


@pytest.mark.parametrize("flags", [(), ("--keep-runs=true",)])
def test_rows_of_removed_sessions_are_dropped_unless_they_are_kept(tmp_path: Path, flags: tuple[str, ...]) -> None:
    old, new = generated(0, started_ms=1_700_000_000_000), generated(1)
    settings = resolve(CLI, {"setting_store": str(tmp_path / "store")}, {})[0]
    store_runs(settings, [old, new])

    async def compact() -> None:
        table = RunTable(LocalStore(tmp_path / "store"), LAYOUT, tmp_path / "first")
        await RunCompactor(table).compact(force=True)
        await announce(LocalStore(tmp_path / "store"), [old], generation=2)

    asyncio.run(compact())
    assert remove_old_sessions(tmp_path, "--max-sessions", "1", "--yes", *flags) == 0
    table = RunTable(LocalStore(tmp_path / "store"), LAYOUT, tmp_path / "second")
    kept = {old.summary.identity} if flags else set()
    assert asyncio.run(identities(table)) == {new.summary.identity} | kept
