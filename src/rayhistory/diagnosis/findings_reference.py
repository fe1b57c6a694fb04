"""Generator of `docs/reference/findings.md`: `python -m rayhistory.diagnosis.findings_reference`."""

import sys
from collections.abc import Iterator

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.failures import CLOCK_TOLERANCE_MS
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES
from rayhistory.diagnosis.rules.rule import FailureRule, SessionRule

_INTRODUCTION = f"""\
# Findings of a diagnosis

*Generated from the rules in `src/rayhistory/diagnosis/rules` by `make docs`; a test fails when the two differ.*

`rayhistory diagnose`, the page `/s/…/diagnosis` and `api/history/diagnosis` report why a session failed or was slow.
Each finding has one of these codes. Codes are stable; headlines may change.

Failure rules are listed in order of precedence: if several rules match a failure, the first one reports it. Its
consequences belong to the same finding. Clocks of different nodes may differ by up to {CLOCK_TOLERANCE_MS // 1000} s.
"""

_COMPARISONS = """\
## Comparison with earlier runs

A diagnosis also compares the session with earlier runs of the same jobs ([runs](../how-to/runs.md)). A finding is
marked as `new` if none of the last ten runs has its fingerprint. If there is no earlier run, `new_fingerprint` and
`regression` are listed as skipped.

### `regression`

A job took longer than the median of its earlier successful runs, by more than 20 %, 10 s and three times their spread.

Example: `nightly took 15 min 0 s, 1.5 times as long as usual`
"""


def document() -> str:
    """Return the page `docs/reference/findings.md`."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for title, rules in (("Failures", FAILURE_RULES), ("Slowness and recording", SESSION_RULES)):
        yield f"## {title}"
        yield ""
        for rule in rules:
            yield from _rule(rule)
    yield _COMPARISONS


def _rule(rule: FailureRule | SessionRule) -> Iterator[str]:
    found = next(finding for finding in diagnose(rule.example.facts).findings if finding.code == rule.code)
    yield f"### `{rule.code}`"
    yield ""
    yield rule.meaning
    yield ""
    yield f"Example: {_code(found.headline)}"
    yield ""
    if found.suggestion:
        yield f"Suggestion: {found.suggestion}"
        yield ""
    if rule.needs:
        yield f"Requires {' and '.join(rule.needs)}. Without them the rule is listed as skipped."
        yield ""


def _code(text: str) -> str:
    return f"``{text}``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(document())
