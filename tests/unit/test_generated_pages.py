"""Pages that `make docs` generates are up to date, and a change of the tables has a new schema version."""

import hashlib
from types import ModuleType

import pytest

from rayhistory.cli.inspect import tables_reference
from rayhistory.cli.table_schema import schema
from rayhistory.diagnosis import findings_reference
from rayhistory.events.table_columns import TABLES
from rayhistory.index.fold.served_tasks import AS_OF_COLUMNS
from rayhistory.index.manifest import SCHEMA_VERSION
from support.paths import DOCS

TABLES_OF_VERSION = {15: "b1e72f3edf223c1d"}
"""The digest of all tables, merged and served, by the schema version that has them."""


@pytest.mark.parametrize(("page", "source"), [("tables.md", tables_reference), ("findings.md", findings_reference)])
def test_page_is_what_make_docs_generates(page: str, source: ModuleType) -> None:
    assert (DOCS / "reference" / page).read_text() == source.document()


def test_tables_that_change_have_a_new_schema_version() -> None:
    """Otherwise servers read indexes that lack a column, instead of building them again."""
    text = f"{schema()} {AS_OF_COLUMNS} {TABLES}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert {SCHEMA_VERSION: digest} == TABLES_OF_VERSION, (
        "the tables changed: increment SCHEMA_VERSION in src/rayhistory/index/manifest.py, and note it here"
    )
