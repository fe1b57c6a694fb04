"""Remove values of environment variables from all texts of a diagnosis, as the API masks them elsewhere.

Diagnoses are stored, shown to everybody who may see the session, and pasted into tickets.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

from rayhistory.diagnosis.findings import Diagnosis, Evidence, Finding, Verdict
from rayhistory.diagnosis.lenient_json import members
from rayhistory.masking import MASK

MIN_SECRET_CHARS = 6
"""Minimum length of a value that is removed. Shorter values, such as `1` and `true`, occur in texts for other reasons.
"""
_MAX_VALUES = 2_000
_WORD = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*")
"""A pattern for values such as `sample` and `us-east`.

They are removed as whole words only, as they may be parts of names.
"""
_ENV_VARS = re.compile(r"""(["']env_?[vV]ars["']\s*:\s*)\{[^{}]{0,20000}\}""")
_VALUE = re.compile(r"""(["'][^"']{0,300}["']\s*:\s*)(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def env_values(runtime_envs: Iterable[str | None]) -> list[str]:
    """Return the values of environment variables in runtime environments, the longest first."""
    found: set[str] = set()
    for text in runtime_envs:
        variables = [members(text).get(name) for name in ("env_vars", "envVars")]
        for values in variables:
            if isinstance(values, dict):
                found |= {str(value) for value in values.values() if len(str(value)) >= MIN_SECRET_CHARS}
    return sorted(found, key=lambda value: (-len(value), value))[:_MAX_VALUES]


def redacted(diagnosis: Diagnosis, values: list[str]) -> Diagnosis:
    """Return the diagnosis without these values, and without values in printed runtime environments."""
    pattern = re.compile("|".join(map(_value_pattern, values))) if values else None

    def clean(text: str) -> str:
        text = _ENV_VARS.sub(_masked_values, text)
        return pattern.sub(MASK, text) if pattern else text

    verdict = diagnosis.verdict
    return msgspec.structs.replace(
        diagnosis,
        verdict=_clean_verdict(verdict, clean) if verdict else None,
        findings=[_clean_finding(finding, clean) for finding in diagnosis.findings],
    )


def _value_pattern(value: str) -> str:
    return rf"(?<!\w){re.escape(value)}(?!\w)" if _WORD.fullmatch(value) else re.escape(value)


def _masked_values(found: re.Match[str]) -> str:
    values = found[0][len(found[1]) :]
    return found[1] + _VALUE.sub(rf'\1"{MASK}"', values)


def _clean_verdict(verdict: Verdict, clean: Callable[[str], str]) -> Verdict:
    return msgspec.structs.replace(verdict, headline=clean(verdict.headline))


def _clean_finding(finding: Finding, clean: Callable[[str], str]) -> Finding:
    return msgspec.structs.replace(
        finding,
        headline=clean(finding.headline),
        detail=clean(finding.detail),
        suggestion=clean(finding.suggestion),
        evidence=[_clean_evidence(each, clean) for each in finding.evidence],
    )


def _clean_evidence(evidence: Evidence, clean: Callable[[str], str]) -> Evidence:
    return msgspec.structs.replace(evidence, text=clean(evidence.text))
