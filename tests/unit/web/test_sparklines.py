"""Small charts of metrics on lists: points, scale and text."""

import msgspec

from rayhistory.web.sparklines import spark_points, spark_text, spark_width


class Steps(msgspec.Struct):
    values: list[float | None]
    step_ms: int = 30_000


def test_points_are_seconds_and_percent_from_the_top() -> None:
    """A step without samples is left out, and values outside of 0 to 100 are bounded."""
    assert spark_points(Steps([25.0, None, 150.0, -3.0])) == "0,75.0 60,0.0 90,100.0"


def test_lines_of_a_row_have_the_scale_of_the_longest() -> None:
    assert spark_width([Steps([1.0] * 4), None, Steps([1.0], 1_000)]) == 120
    assert spark_width([]) == spark_width([Steps([])]) == 1


def test_text_names_mean_and_maximum() -> None:
    assert spark_text(Steps([10.0, None, 20.0])) == "mean 15, most 20"
    assert spark_text(Steps([None])) == "no samples"
