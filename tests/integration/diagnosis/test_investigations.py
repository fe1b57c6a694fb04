"""Investigations by a coding agent's protocol: the planted cause in few calls and few tokens."""

import asyncio
import shutil
from pathlib import Path

from failures.fixtures import unpack
from failures.investigations import MAX_TOKENS, investigate_all, table
from support.server_process import running_server

CASES = ("crashes-segfault", "resources-infeasible_task")


def test_planted_cause_is_found_within_six_calls(tmp_path: Path) -> None:
    store, sessions = tmp_path / "store", {}
    for case in CASES:
        sessions[case] = unpack(case, tmp_path / case)
        shutil.copytree(tmp_path / case / "store", store, dirs_exist_ok=True)
    with running_server(store, tmp_path / "server") as address:
        investigations = asyncio.run(investigate_all(address, sessions))
    assert all(done.is_right for done in investigations), table(investigations)
    assert all(done.tokens <= MAX_TOKENS for done in investigations), table(investigations)
