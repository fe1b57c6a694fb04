"""Codes of gaps: each is produced somewhere, and none is written as text."""

import re
from pathlib import Path

import rayhistory
from rayhistory.gaps import GapCode

SOURCE = Path(rayhistory.__file__).parent


def test_every_code_is_produced_somewhere() -> None:
    used: set[str] = set()
    for path in [*SOURCE.glob("events/*.py"), *SOURCE.glob("index/**/*.py")]:
        used |= set(re.findall(r"\bGapCode\.([A-Z_]+)", path.read_text()))
    assert used == set(GapCode.__members__)


def test_source_has_no_codes_as_text() -> None:
    """A code that is written as text could have a typing error."""
    code_as_text = re.compile(f"""(["'])(?:{"|".join(GapCode)})\\1""")
    found = [path.name for path in SOURCE.rglob("*.py") if code_as_text.search(path.read_text())]
    assert found == ["gaps.py"]
