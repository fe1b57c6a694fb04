"""`docs/tables.md`, made from the declaration of the tables: `python -m rayhistory.cli.tables_doc`."""

import sys

from rayhistory.cli.schema import schema
from rayhistory.events.tables import BY_NAME, TABLES, Type
from rayhistory.index.query import KEYS

_INTRODUCTION = """\
# The tables of a session

*Made from the declaration in `src/rayhistory/events/tables.py` by `make docs`; a test fails when the two differ.*

These are the tables that `rayhistory sql`, `rayhistory export`, `rayhistory tasks` and its like, and
`/api/history/rows/{table}` read. Names that Ray has are Ray's. Ids are hexadecimal text. What ends in `_ms` or `_time`
is milliseconds since 1970 (UTC), what ends in `_ns` nanoseconds, what ends in `_s` seconds. JSON is kept as text:
`required_resources->>'$.CPU'`. Nothing is ever guessed: what is not known is NULL.

With `rayhistory sql --all` each table also has `namespace`, `cluster` and `session`.
"""

_TEXTS = {
    "tasks": "Every attempt of every task: what it is, where it ran, how it ended, and when it reached each state. "
    "`closed_by_history` tells that Ray reported no end, and the session's end was taken for it.",
    "actors": "Actors, in their last state.",
    "jobs": "Jobs: submitted ones (`SUBMISSION`) and drivers that nobody submitted (`DRIVER`).",
    "nodes": "The nodes of the cluster.",
    "workers": BY_NAME["workers"].text,
    "placement_groups": BY_NAME["placement_groups"].text,
}
_JSON = {column.name for table in TABLES for column in table.columns if column.type is Type.JSON}
_JSON |= {"runtime_env", "spans", "death_cause"}
_TYPES = {"VARCHAR": "text", "BIGINT": "integer", "HUGEINT": "integer", "BOOLEAN": "true or false", "DOUBLE": "number"}


def document() -> str:
    parts = [_INTRODUCTION]
    for name, columns in schema().items():
        keys = ", ".join(f"`{key}`" for key in KEYS[name])
        text = _TEXTS.get(name) or BY_NAME[name].text
        parts.append(f"## `{name}`\n\n{text} Rows differ in {keys}.\n\n| column | type |\n|---|---|")
        parts += [f"| `{column}` | {_type(column, kind)} |" for column, kind in columns.items()]
        parts.append("")
    return "\n".join(parts)


def _type(column: str, kind: str) -> str:
    return "JSON" if column in _JSON and kind == "VARCHAR" else _TYPES.get(kind, kind.lower())


if __name__ == "__main__":
    sys.stdout.write(document())
