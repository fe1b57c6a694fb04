"""CSV of runs and of the fleet, which people open in a spreadsheet."""

import csv
import io

from rayhistory.server.runs_api.csv_rows import csv_response


def test_cells_are_no_formulas() -> None:
    """Clusters choose the names of their runs."""
    values = ("=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\tx", "\rx", "plain", -5, None)
    response = csv_response(["value"], [(value,) for value in values], "runs")
    rows = list(csv.DictReader(io.StringIO(bytes(response.body).decode(), newline="")))
    assert [row["value"] for row in rows] == [
        "'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(1)", "'\tx", "'\rx", "plain", "-5", "",
    ]  # fmt: skip
