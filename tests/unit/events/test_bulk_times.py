"""Parsing of many times at once."""

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.events.bulk_times import parse_all
from rayhistory.events.times import parse_ns


@settings(max_examples=30, deadline=None)
@given(st.lists(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1)), max_size=5), st.data())  # noqa: DTZ001
def test_parse_all_equals_parse_ns_of_each(times: list[datetime], data: st.DataObject) -> None:
    def written(time: datetime) -> str:
        fraction = data.draw(
            st.sampled_from(["", ".5", ".123", ".123456", ".000000001", ".999999999", ".12+01:00", ".x"])
        )
        return time.strftime("%Y-%m-%dT%H:%M:%S") + fraction + data.draw(st.sampled_from(["Z", "Z", "Z", "", "+00:00"]))

    texts = [written(time) for time in times]
    assert list(parse_all(texts)) == [parse_ns(text) for text in texts]
