"""Whole tables as archives: the valid rows of every part, whatever happens to the local copies."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from rayhistory.api.arrow_files import read_archive
from rayhistory.errors import IndexDamaged, StoreUnavailable
from rayhistory.index.manifest import Manifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.server.row_files import MAX_FILES_PER_VISITOR, RowFiles
from rayhistory.server.view import SessionView
from support.folding import (
    RECORDED,
    REF,
    as_lines,
    as_of_source,
    files_of,
    fold_session,
    opened,
    opened_as_of,
    put,
    source_of,
)
from support.folding import read_rows as read_source


def archived_rows(index: OpenIndex, table: str, *, with_superseded: bool = True) -> list[tuple[Any, ...]]:
    view = SessionView(REF, "ended", index, logs=None)  # type: ignore[arg-type]

    async def work() -> list[tuple[Any, ...]]:
        response = await RowFiles().archive(view, table, "ada", with_superseded=with_superseded)
        async with response._resources:  # type: ignore[attr-defined]
            return read(response.path)

    return asyncio.run(work())


def read(archive: str | os.PathLike[str]) -> list[tuple[Any, ...]]:
    with Path(archive).open("rb") as file:
        found = read_archive(file)
    assert found is not None
    return sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True), key=repr)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """An index of two parts, of which one replaces rows of the other."""
    directory = tmp_path_factory.mktemp("grown")
    for step in range(2):
        put(directory, step, as_lines(RECORDED[step::2]))
        manifest = fold_session(directory, None)
    assert any(part.superseded for part in manifest.parts)
    return directory, manifest


@pytest.mark.parametrize("with_superseded", [True, False])
@pytest.mark.parametrize("table", ["tasks", "profile_events", "actors", "placement_groups"])
def test_archive_has_each_valid_row_once(grown: tuple[Path, Manifest], table: str, with_superseded: bool) -> None:
    directory, manifest = grown
    expected = read_source(source_of(directory, manifest, table))
    assert archived_rows(opened(directory, manifest), table, with_superseded=with_superseded) == expected
    assert bool(expected) == (table != "placement_groups"), "a table without rows has its columns"


class Copies:
    """Local copies of an index's files, which get lost or damaged a number of times."""

    def __init__(self, grown: tuple[Path, Manifest], folder: Path, accidents: int, *, evicted: bool) -> None:
        self._directory, self._manifest = grown
        self._folder = folder
        self._accidents = accidents
        self._evicted = evicted

    async def fetch(self, name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        self._accidents -= 1
        copies = [self._folder / f"{name}.{number}.parquet" for number in numbers]
        sources = files_of(self._directory, self._manifest, name)
        for number, copy in zip(numbers, copies, strict=True):
            shutil.copy(sources[number], copy)
            if self._accidents >= 0:
                copy.unlink() if self._evicted else copy.write_bytes(b"x" * copy.stat().st_size)
        return copies


def test_evicted_and_damaged_copies_are_fetched_again(grown: tuple[Path, Manifest], tmp_path: Path) -> None:
    expected = read_source(source_of(*grown, "workers"))
    for accidents, evicted in ((3, True), (1, False)):
        copies = Copies(grown, tmp_path, accidents, evicted=evicted)
        assert archived_rows(OpenIndex(grown[1], copies.fetch), "workers") == expected


def test_copies_that_stay_lost_or_damaged_are_errors(grown: tuple[Path, Manifest], tmp_path: Path) -> None:
    for evicted, error in ((True, StoreUnavailable), (False, IndexDamaged)):
        copies = Copies(grown, tmp_path, 1_000, evicted=evicted)
        with pytest.raises(error):
            archived_rows(OpenIndex(grown[1], copies.fetch), "workers")


def test_archive_as_of_a_time_has_the_rows_of_that_time(grown: tuple[Path, Manifest]) -> None:
    directory, manifest = grown
    middle_ns = ((manifest.first_ns or 0) + (manifest.last_ns or 0)) // 2
    for table in ("tasks", "profile_events"):
        expected = read_source(as_of_source(directory, manifest, middle_ns, table))
        assert archived_rows(opened_as_of(directory, manifest, middle_ns), table) == expected
        assert expected != read_source(source_of(directory, manifest, table))


class ClientLeft(OSError):
    """What a server raises when it sends to a client that is gone."""


@pytest.mark.parametrize("spec", ["2.3", "2.4"], ids=["the client is seen to leave", "sending fails"])
def test_file_is_removed_and_its_slot_is_free_when_the_client_leaves(
    grown: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    view = SessionView(REF, "ended", opened(*grown), logs=None)  # type: ignore[arg-type]
    files, scope = RowFiles(), {"type": "http", "method": "GET", "headers": [], "asgi": {"spec_version": spec}}

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise ClientLeft

    def written_files() -> int:
        return len(list(tmp_path.glob("*/*.zip")))

    async def work() -> None:
        for _ in range(MAX_FILES_PER_VISITOR + 1):
            response = await files.archive(view, "tasks", "ada", with_superseded=True)
            assert written_files() == 1
            with contextlib.suppress(ClientLeft):
                await response(scope, receive, send)
            assert written_files() == 0

    asyncio.run(work())
