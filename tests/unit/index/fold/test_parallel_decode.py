"""Sources are distributed over decoders by size, with those of one node's packs together."""

from rayhistory.index.fold.parallel_decode import _portions
from rayhistory.index.fold.sources import Source, SourceKind


def events(name: str, size: int, kind: SourceKind = SourceKind.EVENTS) -> Source:
    return Source(name, size, kind)


def test_small_session_is_one_portion_per_core() -> None:
    portions = _portions([events(f"{number}", 1000 + number) for number in range(100)], 4)
    assert [len(portion) for portion in portions] == [25] * 4


def test_large_session_is_several_portions_per_core_of_about_the_same_size() -> None:
    sources = [events(f"{number}", (number + 1) << 20) for number in range(40)]
    portions = _portions(sources, 2)
    sizes = [sum(source.size for source in portion) for portion in portions]
    assert len(portions) == 8
    assert max(sizes) < 1.2 * min(sizes)
    assert {source.key for portion in portions for source in portion} == {source.key for source in sources}


def test_streams_of_one_node_are_read_by_one_decoder() -> None:
    """Each decoder that reads a node's packs reads their directory."""
    kinds = (SourceKind.PACKED_EVENTS, SourceKind.PACKED_LOG)
    sources = [events(f"node-{node}#{number}", 100, kinds[number % 2]) for node in range(6) for number in range(5)]
    portions = _portions(sources, 2)
    nodes = [{source.key.partition("#")[0] for source in portion} for portion in portions]
    assert sum(map(len, nodes)) == 6


def test_many_tiny_objects_weigh_more_than_their_bytes() -> None:
    sources = [events("large", 100_000), *(events(f"tiny-{number}", 1) for number in range(100))]
    portions = _portions(sources, 2)
    assert max(map(len, portions)) < 70, "requests cost time, too"
