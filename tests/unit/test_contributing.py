"""The worked examples of CONTRIBUTING.md fit the code, and the tutorial's job is that of the examples."""

import ast
import builtins
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rayhistory.diagnosis.findings import Counts
from rayhistory.diagnosis.roots import find_chains
from rayhistory.diagnosis.rules.rule import FailureRule, Group
from support.paths import DOCS, ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
DIFFS = re.findall(r"^( *)```diff (\S+)\n(.*?)^\1```", GUIDE, re.MULTILINE | re.DOTALL)
CODE = re.findall(r"^( *)```python\n(.*?)^\1```", GUIDE, re.MULTILINE | re.DOTALL)


def test_guide_has_examples() -> None:
    assert len(DIFFS) > 8
    assert len(CODE) > 8


@pytest.mark.parametrize(("indent", "path", "diff"), DIFFS, ids=lambda value: value if "/" in value else "")
def test_lines_around_a_change_are_in_the_file(indent: str, path: str, diff: str) -> None:
    lines = [line[len(indent) :] for line in diff.splitlines() if line.strip()]
    existing = {line.rstrip() for line in (ROOT / path).read_text().splitlines()}
    context = [line[1:].rstrip() for line in lines if line[0] in " -"]
    assert [line for line in context if line not in existing] == []
    assert any(line.startswith("+") for line in lines)


@pytest.mark.parametrize(("indent", "code"), CODE)
def test_code_of_an_example_parses(indent: str, code: str) -> None:
    ast.parse(textwrap.dedent(code))


def test_files_of_the_examples_exist_or_are_created() -> None:
    created = {
        "share.py",
        "node_zones.py",
        "test_node_zones.py",
        "zones.html",
        "zones_page.py",
        "zone_counts.py",
        "dataset_not_found.py",
        "test_dataset_not_found.py",
    }
    named = set(re.findall(r"`((?:src|tests)/[\w/.-]+\.(?:py|html))`", GUIDE))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert {name.rpartition("/")[2] for name in missing} == created


def test_constants_that_the_text_names_exist() -> None:
    named = set(
        re.findall(r"`(_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|_[A-Z]+)`", re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL))
    )
    sources = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    code = "\n".join(path.read_text() for path in sources)
    words = set(re.findall(r"\w+", code))
    assert "_DEFINITION_COLUMNS" in named
    assert named - words == {"NODE_DRAIN_EVENT", "RAYHISTORY_MAX_ZONES"}  # the examples add them


def test_job_of_the_tutorial_is_an_example() -> None:
    tutorial = (DOCS / "tutorial/first-session.md").read_text()
    job = re.search(r"```python\n(.*?)```", tutorial, re.DOTALL)
    assert job
    assert (ROOT / "examples/failing_job.py").read_text().endswith(job[1])


def blocks_for_existing_files() -> list[tuple[str, str]]:
    """Return the Python blocks that go into a file of the tree: the last one that is named before the block."""
    found = []
    for match in re.finditer(r"^( *)```python\n(.*?)^\1```", GUIDE, re.MULTILINE | re.DOTALL):
        named = re.findall(r"`((?:src|tests)/[\w/.-]+\.\w+)`", GUIDE[: match.start()])[-1]
        if (ROOT / named).exists():
            found.append((named, textwrap.dedent(match[2])))
    return found


@pytest.mark.parametrize(("path", "code"), blocks_for_existing_files(), ids=lambda value: value if "/" in value else "")
def test_names_that_an_example_uses_are_in_its_file(path: str, code: str) -> None:
    module = ast.parse((ROOT / path).read_text())
    known = {*dir(builtins), *bound_names(module), *bound_names(ast.parse(code))}
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert sorted(used - known) == []


def test_rule_of_the_example_explains_its_example_and_nothing_else() -> None:
    """The two blocks that begin with a docstring are whole files: the rule and its test."""
    rule, test = (run_module(textwrap.dedent(code)) for _, code in CODE if code.lstrip().startswith('"""'))
    found: FailureRule = rule["RULE"]
    facts = found.example.facts
    (chain,) = find_chains(facts)
    match = found.match(chain.root, facts)
    assert match
    group = Group(roots=[chain.root], matches=[match], consequences=[], counts=Counts(tasks=1))
    assert found.describe(group, facts).headline == found.example.headline
    test["test_missing_local_file_is_an_ordinary_exception"]()


def run_module(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), namespace)  # noqa: S102 - our own page
    return namespace


def bound_names(module: ast.Module) -> set[str]:
    """Return names that a module imports, defines or assigns, arguments included."""
    names: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return names
