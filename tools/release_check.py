"""Check that all files of a release name the same version: part of `make release-check`."""

import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy/helm/ray-history-server/Chart.yaml"


def main() -> int:
    problems = version_problems(ROOT) + wheel_problems(sorted((ROOT / "dist").glob("*.whl")), version_of(ROOT))
    for problem in problems:
        print(f"release_check.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


def version_of(root: Path) -> str:
    found = re.search(r'^version = "([^"]+)"', (root / "pyproject.toml").read_text(), re.MULTILINE)
    return found[1] if found else ""


def version_problems(root: Path) -> list[str]:
    """Return where a file names another version than pyproject.toml."""
    version = version_of(root)
    expected = {
        "deploy/helm/ray-history-server/Chart.yaml": f'appVersion: "?v{version}"?$',
        "Makefile": rf"^TAG \?= v{version}$",
        "CHANGELOG.md": rf"^## {version}\b",
    }
    return [
        f"{name}: does not name version {version}"
        for name, pattern in expected.items()
        if not re.search(pattern, (root / name).read_text(), re.MULTILINE)
    ]


def wheel_problems(wheels: list[Path], version: str) -> list[str]:
    """Return what is wrong with the built wheel."""
    found = [wheel for wheel in wheels if wheel.name.startswith(f"rayhistory-{version}-")]
    if not found:
        return [f"dist: no wheel of version {version}"]
    names = zipfile.ZipFile(found[0]).namelist()
    needed = ("rayhistory/py.typed", "rayhistory/web/templates/base.html", "rayhistory/cli/main.py")
    return [f"{found[0].name}: {name} is missing" for name in needed if name not in names]


if __name__ == "__main__":
    raise SystemExit(main())
