"""Generator of `docs/reference/tables.md`: `python -m rayhistory.cli.inspect.tables_reference`."""

import sys

from rayhistory.cli.table_schema import schema
from rayhistory.events.table_columns import TABLES, TABLES_BY_NAME, Type
from rayhistory.index.query.query import KEY_COLUMNS

_INTRODUCTION = """\
# Tables of a session

*Generated from `src/rayhistory/events/table_columns.py` by `make docs`; a test fails when the two differ.*

`rayhistory sql`, `rayhistory export`, the table commands such as `rayhistory tasks`, and `/api/history/rows/{table}`
read these tables.

- Columns that exist in Ray have Ray's names.
- Ids are hexadecimal text.
- Columns that end in `_ms` or `_time` are milliseconds since 1970 (UTC), in `_ns` nanoseconds, in `_s` seconds.
- JSON is stored as text: `required_resources->>'$.CPU'`.
- Unknown values are NULL, never guessed.
- With `rayhistory sql --all` each table also has the columns `namespace`, `cluster` and `session`.
"""

_DESCRIPTIONS = {
    "tasks": "Every attempt of every task: its definition, its node and worker, its end, and the time of each state. "
    "`closed_by_history` is true if Ray reported no end, so that the end was inferred at session end.",
    "actors": "Actors, in their last state.",
    "jobs": "Jobs: submitted jobs (`SUBMISSION`) and drivers that were started directly (`DRIVER`).",
    "nodes": "The nodes of the cluster.",
    "workers": TABLES_BY_NAME["workers"].description,
    "placement_groups": TABLES_BY_NAME["placement_groups"].description,
}
_JSON_COLUMNS = {column.name for table in TABLES for column in table.columns if column.type is Type.JSON}
_JSON_COLUMNS |= {"runtime_env", "spans", "death_cause"}
_TYPE_NAMES = {"VARCHAR": "text", "BIGINT": "integer", "HUGEINT": "integer", "BOOLEAN": "boolean", "DOUBLE": "number"}


def document() -> str:
    parts = [_INTRODUCTION]
    for name, columns in schema().items():
        keys = ", ".join(f"`{key}`" for key in KEY_COLUMNS[name])
        text = _DESCRIPTIONS.get(name) or TABLES_BY_NAME[name].description
        parts.append(f"## `{name}`\n\n{text} Primary key: {keys}.\n\n| column | type |\n|---|---|")
        parts += [f"| `{column}` | {_type_name(column, kind)} |" for column, kind in columns.items()]
        parts.append("")
    return "\n".join(parts)


def _type_name(column: str, kind: str) -> str:
    return "JSON" if column in _JSON_COLUMNS and kind == "VARCHAR" else _TYPE_NAMES.get(kind, kind.lower())


if __name__ == "__main__":
    sys.stdout.write(document())
