"""The commands that the guides tell people to type."""

import re
import shlex
from pathlib import Path

from deploy.files import ROOT

DOCS = ROOT / "docs"
GUIDES = [*sorted((DOCS / "kubernetes").glob("*.md")), DOCS / "troubleshooting.md"]


def commands(guide: Path) -> list[str]:
    """Lines of examples, with those that continue them."""
    text = re.sub(r"^```.*?^```", "", guide.read_text(), flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)]


def of_program(name: str) -> list[str]:
    return [line for guide in GUIDES for line in commands(guide) if shlex.split(line)[0] == name]


def exports(guide: Path) -> dict[str, str]:
    """The variables that a guide has people set, but for those that a cloud has to be asked for."""
    values: dict[str, str] = {}
    for line in commands(guide):
        if line.startswith("export ") and "$(" not in line:
            name, _, value = line.removeprefix("export ").partition("=")
            values[name] = re.sub(r"\$(\w+)", lambda found: values[found[1]], value)
    return values
