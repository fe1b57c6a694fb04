"""Hints for conditions whose value cannot occur."""

import pytest

from rayhistory.cli.inspect.default_columns import DEFAULT_COLUMNS
from rayhistory.cli.inspect.known_values import KNOWN_VALUES, unknown_values
from rayhistory.cli.table_schema import schema


@pytest.mark.parametrize(
    ("table", "where", "hints"),
    [
        ("tasks", ["state=FALED"], ["state=FALED matches no row: did you mean FAILED?"]),
        ("tasks", ["state = finish or (state=FAILED and type='NORMAL')"],
         ["state=finish matches no row: did you mean FINISHED?",
          "type=NORMAL matches no row: did you mean NORMAL_TASK?"]),
        ("nodes", ["state=BROKEN"], ["state=BROKEN matches no row: use one of ALIVE, DEAD"]),
        ("jobs", ["status=SUCCEDED", "entrypoint~x"], ["status=SUCCEDED matches no row: did you mean SUCCEEDED?"]),
        ("tasks", ["state=failed"], []),
        ("tasks", ["state=", "state!=FALED", "state~FAL", "name=FALED"], []),
    ],
)  # fmt: skip
def test_value_that_ray_does_not_report_gets_a_hint(table: str, where: list[str], hints: list[str]) -> None:
    assert list(unknown_values(table, where)) == hints


def test_known_values_are_those_of_columns_of_the_commands() -> None:
    assert {table for table, _ in KNOWN_VALUES} == set(DEFAULT_COLUMNS)
    assert [column for table, column in KNOWN_VALUES if column not in schema()[table]] == []
