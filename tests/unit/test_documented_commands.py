"""Every command on every page is understood by its program, or the page says that tests do not run it.

Other tests also run them: tests/integration/test_docs.py those of the references, tests/deploy and tests/kubernetes
those of the guides, tests/archive/test_document.py those of the archive, tests/e2e/test_readme.py those of the README.
"""

import re
import shlex
from pathlib import Path

import pytest

from rayhistory.cli.main import build_parser
from rayhistory.settings import COLLECTOR, SERVER
from rayhistory.settings.command_line import Parser, add_flags
from support.paths import DOCS, ROOT

PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
OURS = ("rayhistory", "collector", "historyserver")
RUN_ELSEWHERE = {"kubectl", "helm", "curl", "make", "export", "envsubst", "sed", "echo", "bash"}
"""Programs whose commands are run by tests of guides and references, or, for make, exist by a test."""
KEYWORDS = {"for", "while"}
ON_YOUR_MACHINE = {
    "ray",
    "python",
    "python3",
    "pip",
    "kind",
    "docker",
    "eval",
    ".venv/bin/python",
    ".venv/bin/pip",
    "jq",
}


def example_lines(page: Path) -> list[str]:
    """Return the lines of example blocks: indented, or fenced as `sh`. Continued lines are joined."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [*"".join(blocks).splitlines(), *re.findall(r"^ {4}(\S.*)$", plain, re.MULTILINE)]


def words_of(line: str) -> list[str]:
    """Return the words of the first command of a line, without comments, variables and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set(";|&>"):
            break
        words.append(word)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


def our_commands() -> list[tuple[str, list[str]]]:
    start = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(OURS)})\b")
    lines = [(page.stem, words_of(line)) for page in PAGES for line in example_lines(page) if start.match(line)]
    return [(f"{page}: {' '.join(words)}", words) for page, words in lines]


def parser_of(program: str) -> Parser:
    if program == "rayhistory":
        return build_parser()
    parser = Parser(prog=program)
    add_flags(parser, SERVER if program == "historyserver" else COLLECTOR)
    return parser


@pytest.fixture(scope="module")
def parsers() -> dict[str, Parser]:
    return {program: parser_of(program) for program in OURS}


def test_documents_have_commands() -> None:
    assert {words[0] for _, words in our_commands()} == set(OURS)
    assert len(our_commands()) > 50


@pytest.mark.parametrize(("name", "words"), our_commands(), ids=[name for name, _ in our_commands()])
def test_command_is_understood_by_its_program(parsers: dict[str, Parser], name: str, words: list[str]) -> None:
    """A wrong command, flag or value makes the parser exit."""
    parsers[words[0]].parse_args(words[1:])


TASKS = [page for page in PAGES if {"how-to", "tutorial"} & set(page.parts)]


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_programs_that_no_test_runs_are_named_on_the_page(page: Path) -> None:
    functions = re.findall(r"^\s*(\w+)\(\) \{", page.read_text(), re.MULTILINE)
    known = {*OURS, *RUN_ELSEWHERE, *ON_YOUR_MACHINE, *KEYWORDS, *functions}
    commands = [line for line in example_lines(page) if re.match(r"[a-z.][\w./-]* [-\w./{<\"'$]", line)]
    used = {line.split()[0] for line in commands} - known
    marked = " ".join(re.findall(r"^Tests run .*? except (?:.+\n)+", page.read_text(), re.MULTILINE))
    assert [program for program in sorted(used) if f"`{program}`" not in marked] == []
