"""Columns are built of finished objects, extended by new ones, and give the same samples as the objects."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rayhistory.index.products.product import BuiltProduct, PreviousProduct, ProductContext
from rayhistory.metric_columns.columns_product import PRODUCT
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.metrics_reader import MetricsReader
from rayhistory.metrics.object_listing import MetricQuery
from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.promql.engine import evaluate, grid
from rayhistory.promql.values import Vector
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.records import Closing
from rayhistory.storage.local import LocalStore
from support.stored_metrics import REF, START_MS, samples, server_settings, store_object, store_session

NODES = "a" * 56, "b" * 56
HOUR_MS = 3_600_000


@dataclasses.dataclass
class Built:
    """A build, as its reader and as the next build see it."""

    build: str
    paths: dict[str, Path]

    @property
    def manifest(self) -> "Built":
        return self

    @property
    def files(self) -> dict[str, int]:
        return {name: path.stat().st_size for name, path in self.paths.items()}

    def fetch(self, name: str) -> Path:
        return self.paths[name]

    async def open(self, ref: SessionRef) -> "Built":
        return self

    async def read(self, name: str, start: int, end: int) -> bytes:
        return self.paths[name].read_bytes()[start:end]


class Session:
    """A session with metrics in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        store_session(directory / "store")

    def put(self, node: str, hour: int, *values: float) -> None:
        first = START_MS + hour * HOUR_MS
        store_object(self.directory / "store", node, samples({("up", ()): list(values)}, first), first)

    def build(self, number: int, previous: Built | None = None, *, ended: bool = True) -> tuple[BuiltProduct, Built]:
        scratch = self.directory / f"scratch-{number}"
        scratch.mkdir()
        closing = Closing((START_MS + 24 * HOUR_MS) * 1_000_000, clean=True) if ended else None
        context = ProductContext(
            ref=REF, settings=server_settings(self.directory), store=LocalStore(self.directory / "store"),
            layout=Layout(), manifest=cast("Any", _Tables(closing)), index=cast("Any", None), scratch=scratch,
            previous=cast("PreviousProduct | None", previous), report=lambda progress, detail: None,
            run=self.loop.run_until_complete, indexes=cast("Any", None), product_file=cast("Any", None),
        )  # fmt: skip
        built = PRODUCT.build(context)
        kept = {name: previous.paths[name] for name in built.reused} if previous else {}
        return built, Built(f"{number}", kept | built.files)

    def values(self, columns: Built | None) -> list[list[float]]:
        """Return the samples of each node at the start of each of three hours."""
        reader = MetricsReader(
            LocalStore(self.directory / "store"), Layout(), columns=ColumnReader(columns) if columns else None
        )
        stored = self.loop.run_until_complete(reader.tiles(REF, MetricQuery(), ["up"]))
        times = grid(START_MS + 20_000, START_MS + 20_000 + 2 * HOUR_MS, HOUR_MS)
        result = evaluate("sort_by_label(up, 'instance')", times, SampleQuerier(REF, stored.tiles, 2**60)).value
        assert isinstance(result, Vector)
        return [row[present].tolist() for row, present in zip(result.values, result.present, strict=True)]

    def spoil_objects(self) -> None:
        """Overwrite all stored objects with as many other bytes, so that only columns have samples."""
        for path in (self.directory / "store").rglob("*.msgpack.zst"):
            path.write_bytes(bytes(path.stat().st_size))


@dataclasses.dataclass
class _Tables:
    closing: Closing | None


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path)
    for node in NODES:
        for hour in range(3):
            made.put(node, hour, 1.0 + hour, 10.0 + hour)
    yield made
    made.loop.close()


EXPECTED = [[10.0, 11.0, 12.0]] * 2


def test_columns_have_the_samples_of_the_objects(session: Session) -> None:
    _, columns = session.build(1)
    assert session.values(None) == EXPECTED
    session.spoil_objects()
    assert session.values(columns) == EXPECTED
    assert session.values(None) == []


def test_objects_that_are_still_written_are_not_covered(session: Session) -> None:
    _, columns = session.build(1, ended=False)
    assert session.values(columns) == EXPECTED
    session.spoil_objects()
    assert session.values(columns) == [[10.0, 11.0]] * 2


def test_an_extension_writes_only_new_objects(session: Session) -> None:
    _, first = session.build(1, ended=False)
    built, second = session.build(2, first)
    assert {name.partition("-")[0] for name in built.files} == {"000002"}
    assert set(built.reused) == set(first.paths)
    session.spoil_objects()
    assert session.values(second) == EXPECTED


def test_a_build_without_new_objects_writes_nothing(session: Session) -> None:
    _, first = session.build(1)
    built, _ = session.build(2, first)
    assert (built.files, set(built.reused)) == ({}, set(first.paths))


def test_removed_objects_lead_to_a_new_build(session: Session) -> None:
    _, first = session.build(1)
    next((session.directory / "store").rglob(f"*{NODES[0]}/*.zst")).unlink()
    built, _ = session.build(2, first)
    assert built.reused == ()
    assert {name.partition("-")[0] for name in built.files} == {"000001"}


def test_damaged_objects_stay_gaps(session: Session) -> None:
    path = next((session.directory / "store").rglob(f"*{NODES[0]}/*.zst"))
    path.write_bytes(b"damaged")
    _, columns = session.build(1)
    reader = MetricsReader(LocalStore(session.directory / "store"), Layout(), columns=ColumnReader(columns))
    stored = session.loop.run_until_complete(reader.tiles(REF, MetricQuery(), ["up"]))
    assert [gap.node for gap in stored.gaps] == [NODES[0]]


@pytest.mark.parametrize("kind", ["directory", "labels", "values"])
def test_damaged_columns_are_replaced_by_the_objects(session: Session, kind: str) -> None:
    _, columns = session.build(1)
    path = columns.paths[f"000001-{kind}"]
    path.write_bytes(bytes(path.stat().st_size))
    assert session.values(columns) == EXPECTED


def test_a_session_without_metrics_has_no_files(tmp_path: Path) -> None:
    built, columns = Session(tmp_path).build(1)
    assert (built.files, columns.files) == ({}, {})
