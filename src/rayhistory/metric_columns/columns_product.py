"""Metrics columns as a product of a session's index.

The newest metrics object of a node is overwritten until the session ends. All other objects are final: their columns
are written once, and later builds add columns of new objects.
"""

from pathlib import Path
from typing import Any

from rayhistory.index.products.product import BuiltProduct, PreviousProduct, ProductContext
from rayhistory.metrics.column_file import DIRECTORY, VolumeWriter, decode_directory, volumes
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.metrics_reader import MetricsReader
from rayhistory.metrics.object_listing import MetricsObject, newest_of_nodes
from rayhistory.metrics.sample_tiles import SampleTile, tile_ids
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.metrics.utilization import METRICS, utilization
from rayhistory.promql.values import NO_TIME
from rayhistory.sessions import SessionRef

NAME = "metrics"
_MAX_VOLUMES = 8
"""Maximum number of volumes. If the last build has as many, the next one writes all columns again, as one volume."""


class MetricColumnsProduct:
    name = NAME
    version = 2

    def build(self, context: ProductContext) -> BuiltProduct:
        reader = MetricsReader(context.store, context.layout, cache_bytes=0)
        objects = context.run(reader.listing(context.ref)).objects
        if context.closing is None:  # the newest object of a node is still being overwritten
            newest = newest_of_nodes(objects)
            objects = [each for each in objects if each not in newest]
        previous = _covered(context.previous)
        existing = {(each.key, each.size) for each in objects}
        if len(previous) >= _MAX_VOLUMES or not set().union(*previous.values()) <= existing:
            previous = {}
        done = set().union(*previous.values())
        reused = tuple(name for prefix in previous for name in _names(context.previous, prefix))
        new = [each for each in objects if (each.key, each.size) not in done]
        number = 1 + max((int(prefix) for prefix in previous), default=0)
        files = _write(context, reader, new, f"{number:06d}")
        local = _LocalColumns(files | {name: context.previous.fetch(name) for name in reused if context.previous})
        return BuiltProduct(files, context.run(_preview(context, local)), reused)


class _LocalColumns:
    """The files of this build, before they are published."""

    build = "new"

    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths
        self.files = {name: path.stat().st_size for name, path in paths.items()}

    async def open(self, ref: SessionRef) -> "_LocalColumns":
        return self

    async def read(self, name: str, start: int, end: int) -> bytes:
        with self._paths[name].open("rb") as file:
            file.seek(start)
            return file.read(end - start)


async def _preview(context: ProductContext, local: _LocalColumns) -> dict[str, Any]:
    """Return the utilization of the session over time, for lists of sessions."""
    reader = ColumnReader(local, cache_bytes=0)
    columns = await reader.open(context.ref)
    tiles = await reader.tiles(columns, (0, NO_TIME), METRICS) if columns else []
    return utilization(context.ref, tiles)


def _write(
    context: ProductContext, reader: MetricsReader, objects: list[MetricsObject], prefix: str
) -> dict[str, Path]:
    if not objects:
        return {}
    writer, covered = VolumeWriter(context.scratch, prefix), list[tuple[str, int]]()
    of_tile: dict[Any, list[MetricsObject]] = {}
    for tile_id, each in zip(tile_ids([(each.node, each.first_ms) for each in objects]), objects, strict=True):
        of_tile.setdefault(tile_id, []).append(each)
    for number, (tile_id, some) in enumerate(sorted(of_tile.items(), key=lambda item: item[0])):
        context.report(number / len(of_tile), "writing metrics by name")
        tile: SampleTile
        tile, missing = context.run(reader.load_tile(tile_id, some))
        writer.add(tile)
        covered += [(each.key, each.size) for each in some if each not in missing]
    return writer.finish(covered)


def _covered(previous: PreviousProduct | None) -> dict[str, set[tuple[str, int]]]:
    """Return the objects in each volume of the last build. Return nothing if a volume is damaged."""
    found: dict[str, set[tuple[str, int]]] = {}
    for prefix in volumes(previous.manifest.files) if previous else ():
        assert previous  # noqa: S101
        try:
            found[prefix] = set(decode_directory(previous.fetch(f"{prefix}-{DIRECTORY}").read_bytes()).objects)
        except MetricsDamaged:
            return {}
    return found


def _names(previous: PreviousProduct | None, prefix: str) -> list[str]:
    return [name for name in (previous.manifest.files if previous else ()) if name.startswith(f"{prefix}-")]


PRODUCT = MetricColumnsProduct()
