"""Partitions by ranges of task ids."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.index.fold.partitions import Partitions

QUICK = settings(max_examples=30, deadline=None)


@pytest.mark.slow
@QUICK
@given(st.lists(st.text(alphabet="0123456789abcdef", min_size=48, max_size=48)), st.integers(1, 300))
def test_every_task_is_in_exactly_one_partition(task_ids: list[str], count: int) -> None:
    partitions = Partitions(count)
    positions = dict(partitions.split(task_ids))
    assert sorted(position for found in positions.values() for position in found) == list(range(len(task_ids)))
    with duckdb.connect(config={"threads": 1}) as database:
        for partition, found in positions.items():
            chosen = [task_ids[position] for position in found]
            condition = partitions.condition(partition)
            query = f"SELECT count(*) FROM (SELECT unnest(?::VARCHAR[]) AS task_id) WHERE {condition}"
            assert database.execute(query, [task_ids]).fetchall() == [(len(chosen),)]
