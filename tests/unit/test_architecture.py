"""The import graph points one way, folders stay small, names are unique, and the collector stays light."""

import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

SOURCE = ROOT / "src/rayhistory"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAX_MODULES_PER_FOLDER = 22
MAX_LINES_PER_MODULE = 400
MAX_LINES_PER_FUNCTION = 60

IMPORT_FROM = re.compile(r"^[ \t]*from (rayhistory\S*) import (\([^)]*\)|[^\n#(]*)", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*import (rayhistory[\w.]*)", re.MULTILINE)

ALLOWED_IMPORTS: dict[str, set[str]] = {
    "settings": set(),
    "storage": {"settings"},
    "packs": set(),
    "events": set(),
    "sessions": {"packs", "settings", "storage"},
    "logs": {"packs", "sessions", "storage"},
    "promql": set(),
    "metrics": {"packs", "promql", "sessions", "storage"},
    "collector": {"events", "metrics", "packs", "sessions", "settings", "storage"},
    "index": {"events", "packs", "sessions", "settings", "storage"},
    "search": {"index", "logs", "sessions", "settings", "storage"},
    "access": {"settings"},
    "live": set(),
    "web": set(),
    "diagnosis": {"index", "logs", "metrics"},
    "metric_columns": {"index", "metrics", "promql", "sessions"},
    "runs": {"diagnosis", "index", "sessions", "settings", "storage"},
    "notify": {"index", "runs", "sessions", "storage"},
    "server": {
        "access",
        "api",
        "diagnosis",
        "events",
        "index",
        "live",
        "logs",
        "mcp",
        "metric_columns",
        "metrics",
        "notify",
        "packs",
        "promql",
        "runs",
        "search",
        "sessions",
        "settings",
        "storage",
        "web",
    },
    "archive": {"collector", "events", "index", "packs", "sessions", "settings", "storage"},
    "api": {"sessions"},
    "mcp": {"api"},
    "bundle": {"api", "web"},
    "cli": {
        "api",
        "archive",
        "bundle",
        "diagnosis",
        "events",
        "index",
        "logs",
        "mcp",
        "runs",
        "notify",
        "search",
        "server",
        "sessions",
        "settings",
        "storage",
        "web",
    },
}
"""The packages that each package may import. Modules beside the packages (errors, ids, names, …) are open to all."""

WIRING: dict[str, set[str]] = {"library.py": {"api", "server", "settings"}}
"""Modules beside the packages that put packages together."""

REPEATED_MODULE_NAMES = {
    "__init__",
    "app",  # the ASGI application of a program
    "main",  # the entry point of a program
    # A command's file is named after the command, and so is the module that does its work.
    "copy",
    "diagnose",
    "gaps",
    "import_dir",
    "retention",
    "snapshot",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@functools.cache
def text(path: Path) -> str:
    return path.read_text()


def imported_modules(path: Path) -> Iterator[str]:
    """Find imports anywhere in a module. Parsing all modules would take seconds."""
    for module, names in IMPORT_FROM.findall(text(path)):
        yield module
        yield from (f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?\s*(?:,|\)|$)", names))
    yield from IMPORT.findall(text(path))


def test_every_package_is_in_the_graph() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(ALLOWED_IMPORTS)


def test_packages_import_only_packages_below_them() -> None:
    wrong = []
    for path in modules():
        package = path.relative_to(SOURCE).parts[0]
        allowed = (ALLOWED_IMPORTS | WIRING).get(package, {"settings"}) | {package}
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[0] == "rayhistory" and len(parts) > 1 and parts[1] in ALLOWED_IMPORTS and parts[1] not in allowed:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong


def test_the_graph_has_no_cycles() -> None:
    order: list[str] = []
    while len(order) < len(ALLOWED_IMPORTS):
        free = [name for name, uses in ALLOWED_IMPORTS.items() if name not in order and uses <= set(order)]
        assert free, set(ALLOWED_IMPORTS) - set(order)
        order.extend(free)


def test_sub_packages_do_not_import_each_other_in_circles() -> None:
    """Modules beside the sub-packages of a package may stand below or above them."""
    uses: dict[str, set[str]] = {}
    for path in modules():
        if own := sub_package(path.relative_to(SOURCE).parts):
            others = {sub_package(tuple(name.split(".")[1:])) for name in imported_modules(path)}
            uses.setdefault(own, set()).update(each for each in others if each.split("/")[0] == own.split("/")[0])
    for own, others in uses.items():
        others -= {own, ""}
    assert len(uses) > 20
    done: set[str] = set()
    while len(done) < len(uses):
        free = [name for name, others in uses.items() if name not in done and others <= done]
        assert free, {name: others - done for name, others in uses.items() if name not in done}
        done.update(free)


def sub_package(parts: tuple[str, ...]) -> str:
    """Return "server/http" for modules below that folder, and "" for modules beside sub-packages."""
    return "/".join(parts[:2]) if len(parts) > 2 and (SOURCE / parts[0] / parts[1]).is_dir() else ""


def test_folders_have_at_most_22_modules() -> None:
    sizes = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert not {str(folder): size for folder, size in sizes.items() if size > MAX_MODULES_PER_FOLDER}


def test_modules_have_at_most_400_lines() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(text(path).splitlines()) for path in modules()}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES_PER_MODULE}


def test_functions_have_at_most_60_lines() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}: {name} has {length} lines"
        for path in modules()
        for name, length in function_lengths(text(path))
        if length > MAX_LINES_PER_FUNCTION
    ]
    assert not wrong


def function_lengths(code: str) -> Iterator[tuple[str, int]]:
    """Count the lines of each function by indentation. Parsing all modules would take seconds."""
    open_functions: list[tuple[int, str, int]] = []
    last = 0
    for number, line in enumerate([*code.splitlines(), "end"], 1):
        stripped = line.lstrip()
        if not stripped or stripped.startswith(("#", ")")):
            continue
        indent = len(line) - len(stripped)
        while open_functions and indent <= open_functions[-1][0]:
            _, name, first = open_functions.pop()
            yield name, last - first + 1
        if definition := re.match(r"(?:async )?def (\w+)", stripped):
            open_functions.append((indent, definition[1], number))
        last = number


def test_module_names_do_not_repeat() -> None:
    places = defaultdict(list)
    for path in modules():
        places[path.stem].append(str(path.relative_to(SOURCE)))
    assert not {name: found for name, found in places.items() if len(found) > 1 and name not in REPEATED_MODULE_NAMES}


def test_class_names_do_not_repeat() -> None:
    places = defaultdict(list)
    for path in modules():
        for name in re.findall(r"^class (\w+)", text(path), re.MULTILINE):
            places[name].append(str(path.relative_to(SOURCE)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_files_named_in_the_architecture_exist() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:py|js))`", page))
    assert len(named) > 100
    assert not [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()]


def test_route_modules_do_not_import_each_other() -> None:
    """Code that several route modules need belongs in a module without ROUTES."""
    route_modules = {
        f"rayhistory.{path.relative_to(SOURCE).with_suffix('')}".replace("/", "."): path
        for path in modules()
        if re.search(r"^ROUTES\b.*=", text(path), re.MULTILINE)
    }
    assert len(route_modules) > 10
    wrong = [
        f"{name} imports {imported}"
        for name, path in route_modules.items()
        for imported in imported_modules(path)
        if imported in route_modules and imported != name
    ]
    assert not wrong


def test_the_collector_loads_nothing_of_the_server() -> None:
    """The collector runs beside other people's training jobs."""
    code = "import sys, rayhistory.collector.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "duckdb", "arro3", "jinja2", "rich", "ray",
        *(f"rayhistory.{name}" for name in (
            "access", "api", "archive", "bundle", "cli", "diagnosis", "index", "library", "live", "mcp", "promql",
            "runs", "search", "server", "web",
        )),
    }  # fmt: skip
    assert not heavy & set(loaded)


def test_the_collector_needs_only_the_packages_of_its_image() -> None:
    """Also its modules that are imported late: an import that fails there stops the collection of a head."""
    needed = {requirement.split("~")[0].split(">")[0] for requirement in PROJECT["dependencies"]}
    image = set((ROOT / "deploy/docker/collector.txt").read_text().split())
    packages = {"arro3-core": "arro3", "arro3-io": "arro3", "google-re2": "re2"}
    absent = {packages.get(name, name.replace("-", "_")) for name in needed - image - {"anyio"}}
    assert {"duckdb", "arro3", "numpy", "re2"} <= absent
    parts = [path.relative_to(SOURCE).with_suffix("").parts for path in modules()]
    names = [".".join(("rayhistory", *each)) for each in parts if each[0] in ("collector", "storage")]
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({sorted(absent)}))  # importing them fails now
for name in {names}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
