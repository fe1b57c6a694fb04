"""Comparison of two outputs of a Ray client: field by field for rows, YAML and JSON, else line by line."""

import re
from collections import Counter
from datetime import datetime
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import msgspec
import yaml

from recorded.client_calls import Call
from recorded.compare import Comparison, Difference, compare
from recorded.dashboard_requests import DashboardRequest

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")
_QUERY_DETAILS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+(?= =|\t(INFO|SUCC|ERR|WARN) cli)|(?<=\x1b\[1m)http://[^\s\x1b]+|\x1b\[\d+m"
)
"""The time and address of the query, and colour codes."""
_ROW = re.compile(r"^ {0,3}\d+ {1,3}(?=\S)")
_COUNT = re.compile(r"\b([A-Z_]{3,}): (\d+)")
_STATE_AT_END = {"ALIVE": "DEAD", "PENDING_CREATION": "DEAD", "RUNNING": "FAILED", "PENDING_NODE_ASSIGNMENT": "FAILED"}


def compare_output(call: Call, live: Any, dead: Any) -> Comparison:
    request = DashboardRequest(f"{_endpoint(call)} by {call.name}")
    one, other = _structure(call, live), _structure(call, dead)
    if one is not None and other is not None:
        return compare(request, (0, msgspec.json.encode(one).decode()), (0, msgspec.json.encode(other).decode()))
    return _compare_lines(request, _lines(call, live), _lines(call, dead))


def _endpoint(call: Call) -> str:
    """Return the endpoint that the client reads for this call."""
    words = call.arguments[0] if call.function == "command" else [call.function, *call.arguments]
    if words[0] in ("job", "jobs"):
        return "/api/jobs/"
    kind = words[1].replace("-", "_").removesuffix("s") + "s"
    return f"/api/v0/{kind}/summarize" if words[0] in ("summary", "summarized") else f"/api/v0/{kind}"


def _structure(call: Call, result: Any) -> Any:
    """Return printed YAML or JSON as a value; None for a table or a message."""
    if call.function != "command":
        return result
    if result["code"] == 0 and result["out"].startswith(("---\n", "[{")):
        return _plain(yaml.load(result["out"], _Loader))  # noqa: S506
    return None


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A loader for the Python objects as which Ray prints enumerations."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, _, node: loader.construct_sequence(node)[0])


def _plain(value: Any) -> Any:
    """Turn printed times back into numbers."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return datetime.fromisoformat(value).timestamp() * 1000
    return value


def _lines(call: Call, result: Any) -> list[str]:
    """Return sorted lines without query details, each row of a table on one line."""
    text = _QUERY_DETAILS.sub("", f"exit code {result['code']}\n{result['out']}")
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
    """Rewrite counts such as `FINISHED: 2 RUNNING: 1` to the states after the session's end."""
    counts: Counter[str] = Counter()
    for state, count in _COUNT.findall(line):
        counts[_STATE_AT_END.get(state, state)] += int(count)
    words = [*_COUNT.sub("", line).split(), *(f"{state}: {count}" for state, count in sorted(counts.items()))]
    return " ".join(words)


def _compare_lines(request: DashboardRequest, live: list[str], dead: list[str]) -> Comparison:
    differences = []
    live_fields, dead_fields = ({".text": "\n".join(lines)} for lines in (live, dead))
    for one, other in zip_longest(live, dead, fillvalue=""):
        live_words, dead_words = one.split(), other.split()
        for kind, first, last, start, end in SequenceMatcher(
            None, live_words, dead_words, autojunk=False
        ).get_opcodes():
            if kind != "equal":
                words = " ".join(live_words[first:last]), " ".join(dead_words[start:end])
                differences.append(Difference(request.name, ".words", *words, live_fields, dead_fields))
    total = max(len(live), len(dead))
    return Comparison(total, total - len(differences), differences)
