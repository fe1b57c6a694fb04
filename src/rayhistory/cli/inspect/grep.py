"""`rayhistory grep`: search the logs of one or all sessions. Flags and output are like ripgrep's."""

import argparse
import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from rayhistory.api.http_client import HistoryClient, Params
from rayhistory.cli.client import open_client, open_server
from rayhistory.cli.inspect.find_entity import NO_OUTPUT_OF_ITS_OWN, find_actor, find_job, find_log_node, find_task
from rayhistory.cli.session_args import add_session_arguments
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.search.search_query import MAX_CONTEXT, MAX_LIMIT, STREAMS
from rayhistory.server.history_api.api_types import MAX_COUNTED_PLACES, FileHits, LogHit, LogHits
from rayhistory.settings import Settings

_FOUND, _NOT_FOUND, _FAILED = 0, 1, 2
_SHORT_NODE = 8
_PATH, _LINE, _MATCH, _RESET = "\x1b[35m", "\x1b[32m", "\x1b[1;31m", "\x1b[0m"
_FILTERS = ("node", "stream", "job", "task", "actor", "from", "to")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", metavar="PATTERN", help="regular expression in RE2's syntax")
    add_session_arguments(parser)
    parser.add_argument("--all", action="store_true", help="search all sessions, the newest first")
    parser.add_argument("--since", metavar="TIME", help="with --all: sessions that started within this time (24h, 7d)")
    parser.add_argument("-F", "--fixed-strings", action="store_true", help="PATTERN is a text")
    parser.add_argument("-i", "--ignore-case", action="store_true", help="ignore the case of letters")
    parser.add_argument("-w", "--word-regexp", action="store_true", help="find whole words only")
    parser.add_argument("-C", "--context", type=int, default=0, metavar="N", help="show N lines around each match")
    parser.add_argument("-m", "--max-count", type=int, metavar="N", help="stop after N matching lines")
    parser.add_argument("-g", "--glob", metavar="GLOB", help="search only files whose path or name matches")
    parser.add_argument("--node", metavar="NODE", help="search only files of this node: its id, address or name")
    parser.add_argument("--stream", choices=sorted(STREAMS), help="search only files of this stream")
    parser.add_argument("--job", metavar="ID", help="search only the output of this job: its submission id or job id")
    parser.add_argument("--task", metavar="TASK", help="search only the output of this task: its id or name")
    parser.add_argument("--actor", metavar="ACTOR", help="search only the output of this actor: its id, name or class")
    parser.add_argument("--from", metavar="TIME", help="search only lines at this time or later")
    parser.add_argument("--to", metavar="TIME", help="search only lines before this time")
    parser.add_argument("--newest-first", action="store_true", help="show the newest lines first (default: the oldest)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-l", "--files-with-matches", action="store_true", help="print only the names of files")
    form.add_argument("-c", "--count", action="store_true", help="print only the number of matching lines per file")
    form.add_argument("--json", action="store_true", help="print one JSON object per matching line")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="when to use colours")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if not 0 <= arguments.context <= MAX_CONTEXT:
        raise UsageError(f"--context={arguments.context}: use a number from 0 to {MAX_CONTEXT}")
    if arguments.max_count is not None and arguments.max_count < 1:
        raise UsageError(f"--max-count={arguments.max_count}: use a number above 0")
    if arguments.all and arguments.session:
        raise UsageError("--all searches all sessions: omit SESSION")
    if arguments.since and not arguments.all:
        raise UsageError("--since requires --all")
    try:
        return asyncio.run(search(arguments, settings))
    except RayHistoryError as error:
        sys.stderr.write(f"rayhistory: {error}\n")
        return _FAILED


async def search(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the matches. Return the exit code of grep: 0 if there were any, else 1."""
    printer = _Printer(arguments)
    opened = open_server(arguments, settings) if arguments.all else open_client(arguments, settings)
    async with opened as client:
        if not arguments.all:
            await _resolve_names(client, arguments)
        if not await _print_counts(client, arguments, printer):
            async for hit in _hits(client, _params(arguments), arguments.max_count):
                printer.add(hit)
    printer.close()
    return _FOUND if printer.found else _NOT_FOUND


async def _resolve_names(client: HistoryClient, arguments: argparse.Namespace) -> None:
    """Replace names and beginnings of ids by ids. If all sessions are searched, only full ids are accepted."""
    finders = {"node": find_log_node, "job": find_job, "task": find_task, "actor": find_actor}
    for name, find in finders.items():
        if text := getattr(arguments, name):
            setattr(arguments, name, await find(client, text))


def _params(arguments: argparse.Namespace) -> Params:
    flags = {"regex": not arguments.fixed_strings, "case": not arguments.ignore_case, "word": arguments.word_regexp}
    params: Params = {"q": arguments.pattern, **{name: "1" for name, value in flags.items() if value}}
    params |= {name: getattr(arguments, name) for name in _FILTERS if getattr(arguments, name)}
    if arguments.glob:
        params["file"] = arguments.glob
    if arguments.since:
        params["since"] = arguments.since
    order = "newest" if arguments.newest_first else "oldest"
    return params | {"order": order, "context": arguments.context, "limit": MAX_LIMIT}


async def _hits(client: HistoryClient, params: Params, max_count: int | None) -> AsyncIterator[LogHit]:
    uri, missing = "api/history/search" if client.path else "/api/history/search", max_count
    while True:
        limit = MAX_LIMIT if missing is None else min(MAX_LIMIT, missing)
        page = await client.json(uri, LogHits, params | {"limit": limit})
        for hit in page.hits:
            yield hit
        missing = None if missing is None else missing - len(page.hits)
        if page.next is None or missing == 0:
            return
        params = params | {"cursor": page.next}


async def _print_counts(client: HistoryClient, arguments: argparse.Namespace, printer: "_Printer") -> bool:
    """Print what -c and -l need in one request, which is much faster than to read all matching lines.

    Return False if that is not possible: for several sessions, a task, a maximum count, many files, or a long search.
    """
    is_wanted = arguments.count or arguments.files_with_matches
    if not is_wanted or arguments.all or arguments.task or arguments.max_count is not None:
        return False
    page = await client.json("api/history/search", LogHits, _params(arguments) | {"limit": 1, "counts": "1"})
    if not page.counts or not page.counts.complete or len(page.counts.files) >= MAX_COUNTED_PLACES:
        return False
    for file in sorted(page.counts.files, key=lambda each: (each.node_id, each.file)):
        printer.add_file(file)
    return True


class _Printer:
    """Prints hits as ripgrep does in a pipe: `file:line:text`, and context as `file-line-text`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.found = 0
        self._arguments = arguments
        is_terminal = arguments.color == "auto" and sys.stdout.isatty()
        self._colored = arguments.color == "always" or is_terminal
        self._files: Counter[str] = Counter()
        self._last: tuple[str, int] | None = None

    def add(self, hit: LogHit) -> None:
        self.found += 1
        if self.found == 1 and self._arguments.task and hit.task_id is None:
            searched = f"searching the output of its actor {hit.actor_id} during the task"
            sys.stderr.write(f"rayhistory: {NO_OUTPUT_OF_ITS_OWN}, {searched}\n")
        name = _file_name(hit)
        self._files[name] += 1
        if self._arguments.json:
            sys.stdout.buffer.write(msgspec.json.encode(hit) + b"\n")
        elif self._arguments.files_with_matches:
            if self._files[name] == 1:
                print(self._paint(name, _PATH), flush=True)
        elif not self._arguments.count:
            self._print(name, hit)

    def add_file(self, file: FileHits) -> None:
        self.found += file.hits
        name = _printable(f"{file.node_id[:_SHORT_NODE]}/{file.file}")
        self._files[name] += file.hits
        if self._arguments.files_with_matches:
            print(self._paint(name, _PATH))

    def close(self) -> None:
        if self._arguments.count:
            for name, count in sorted(self._files.items()):
                print(f"{self._paint(name, _PATH)}:{count}")
        sys.stdout.flush()

    def _print(self, name: str, hit: LogHit) -> None:
        place = hit.line if hit.line is not None else hit.offset
        if self._arguments.context and self._last and self._last != (name, place - 1 - len(hit.before)):
            print("--")
        for distance, text in enumerate(hit.before, -len(hit.before)):
            self._print_line(name, place + distance, _printable(text), "-")
        self._print_line(name, place, self._marked(hit), ":")
        for distance, text in enumerate(hit.after, 1):
            self._print_line(name, place + distance, _printable(text), "-")
        self._last = (name, place + len(hit.after))

    def _print_line(self, name: str, number: int, text: str, separator: str) -> None:
        number_text = self._paint(str(number), _LINE)
        print(f"{self._paint(name, _PATH)}{separator}{number_text}{separator}{text}")

    def _marked(self, hit: LogHit) -> str:
        if not self._colored:
            return _printable(hit.text)
        parts, position = [], 0
        for start, end in hit.matches:
            parts += [_printable(hit.text[position:start]), self._paint(_printable(hit.text[start:end]), _MATCH)]
            position = end
        return "".join([*parts, _printable(hit.text[position:])])

    def _paint(self, text: str, color: str) -> str:
        return f"{color}{text}{_RESET}" if self._colored else text


def _file_name(hit: LogHit) -> str:
    """Return the path of a hit's file, below its node and (if several sessions are searched) its session."""
    session = f"{hit.namespace}/{hit.cluster}/{hit.session}/" if hit.session else ""
    return _printable(f"{session}{hit.node_id[:_SHORT_NODE]}/{hit.file}")


def _printable(text: str) -> str:
    """Remove colour codes and replace control characters by `?`, because log lines and file names are untrusted."""
    return re.sub(r"[^\t\x20-\x7e\xa0-\U0010ffff]", "?", re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text.rstrip("\r")))
