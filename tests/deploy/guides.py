"""The commands in the guides."""

import re
import shlex
from pathlib import Path

from deploy.files import ROOT

DOCS = ROOT / "docs"
OVERVIEW = DOCS / "how-to/kubernetes/README.md"
GUIDES = [
    *sorted(OVERVIEW.parent.glob("*.md")),
    DOCS / "tutorial/kind-minio.md",
    DOCS / "how-to/troubleshooting.md",
    DOCS / "how-to/least-privilege.md",
]


def commands(guide: Path) -> list[str]:
    """Return the example lines of a guide, with continued lines joined."""
    text = re.sub(r"^```.*?^```", "", guide.read_text(), flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)]


def commands_of(name: str) -> list[str]:
    return [line for guide in GUIDES for line in commands(guide) if shlex.split(line)[0] == name]


def exports(guide: Path) -> dict[str, str]:
    """Return the variables that a guide exports, except those with command substitution."""
    values: dict[str, str] = {}
    for line in commands(guide):
        if line.startswith("export ") and "$(" not in line:
            name, _, value = line.removeprefix("export ").partition("=")
            values[name] = re.sub(r"\$(\w+)", lambda found: values[found[1]], value)
    return values
