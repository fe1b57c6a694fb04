"""Two outputs of one client of Ray's: field by field where it gives rows, YAML or JSON, else line by line."""

import re
from collections import Counter
from datetime import datetime
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec
import yaml

from recorded.commands import Call
from recorded.compare import Comparison, Difference, compare
from recorded.questions import Question

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")
_OF_THE_QUERY = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+(?= =|\t(INFO|SUCC|ERR|WARN) cli)|(?<=\x1b\[1m)http://[^\s\x1b]+|\x1b\[\d+m"
)
"""When it was asked, at which address, and in which colours that is said."""
_ROW = re.compile(r"^ {0,3}\d+ {1,3}(?=\S)")
_COUNT = re.compile(r"\b([A-Z_]{3,}): (\d+)")
_ENDS = {"ALIVE": "DEAD", "PENDING_CREATION": "DEAD", "RUNNING": "FAILED", "PENDING_NODE_ASSIGNMENT": "FAILED"}


def compare_printed(call: Call, live: Any, dead: Any) -> Comparison:
    question = Question(f"{_endpoint(call)} by {call.name}")
    one, other = _structure(call, live), _structure(call, dead)
    if one is not None and other is not None:
        return compare(question, (0, msgspec.json.encode(one).decode()), (0, msgspec.json.encode(other).decode()))
    return _compare_lines(question, _lines(call, live), _lines(call, dead))


def _endpoint(call: Call) -> str:
    """Of which of Ray's endpoints a client makes this."""
    words = call.arguments[0] if call.function == "command" else [call.function, *call.arguments]
    if words[0] in ("job", "jobs"):
        return "/api/jobs/"
    kind = words[1].replace("-", "_").removesuffix("s") + "s"
    return f"/api/v0/{kind}/summarize" if words[0] in ("summary", "summarized") else f"/api/v0/{kind}"


def _structure(call: Call, answer: Any) -> Any:
    """What was printed as a value; nothing for a table or a message."""
    if call.function != "command":
        return answer
    if answer["code"] == 0 and answer["out"].startswith(("---\n", "[{")):
        return _plain(yaml.load(answer["out"], _Loader))  # noqa: S506
    return None


class _Loader(yaml.CSafeLoader):
    """Ray prints enumerations as Python objects."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, _, node: loader.construct_sequence(node)[0])


def _plain(value: Any) -> Any:
    """Times as the numbers that they were before they were made readable."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return datetime.fromisoformat(value).timestamp() * 1000
    return value


def _lines(call: Call, answer: Any) -> list[str]:
    """Without what differs from one moment to the next; rows of tables in one line each, in any order."""
    text = _OF_THE_QUERY.sub("", f"exit code {answer['code']}\n{answer['out']}")
    if call.arguments[0] == ["job", "list"]:
        return sorted(job.strip("\n ,[]") for job in re.split(r"(?=JobDetails\()", text))
    if call.arguments[0][0] == "job":
        return text.splitlines()
    lines: list[str] = []
    for line in text.splitlines():
        if lines and line.startswith("    ") and not line.startswith("    " + line.strip().upper()):
            lines[-1] += line
        else:
            lines.append(_ROW.sub("", line))
    return sorted(_closed(line) for line in lines if line.strip("- "))


def _closed(line: str) -> str:
    """A line whose `FINISHED: 2 RUNNING: 1` is as it is when everything has ended."""
    counts: Counter[str] = Counter()
    for state, count in _COUNT.findall(line):
        counts[_ENDS.get(state, state)] += int(count)
    words = [*_COUNT.sub("", line).split(), *(f"{state}: {count}" for state, count in sorted(counts.items()))]
    return " ".join(words)


def _compare_lines(question: Question, live: list[str], dead: list[str]) -> Comparison:
    differences = []
    all_said, all_says = ({".text": "\n".join(lines)} for lines in (live, dead))
    for one, other in zip_longest(live, dead, fillvalue=""):
        said, says = one.split(), other.split()
        for kind, first, last, start, end in SequenceMatcher(None, said, says, autojunk=False).get_opcodes():
            if kind != "equal":
                words = " ".join(said[first:last]), " ".join(says[start:end])
                differences.append(Difference(question.name, ".words", *words, all_said, all_says))
    total = max(len(live), len(dead))
    return Comparison(total, total - len(differences), differences)
