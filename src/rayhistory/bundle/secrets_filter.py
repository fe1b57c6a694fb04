"""Redact likely secrets in text that is exported: logs, messages and commands."""

import re
from typing import Any

from rayhistory.masking import MASK, mask_env_vars

_NAMES = r"(?:secret|token|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
_PATTERNS = (
    # NAME=value, "name": "value", --name value: the name may have a prefix and a suffix
    (re.compile(rf"""(?i)({_NAMES}[\w-]{{0,40}}["']?[ \t]{{0,3}}[=:][ \t]{{0,3}}["']?)[^\s"',;&}}]+"""), rf"\1{MASK}"),
    (re.compile(rf"(?i)(--[\w-]{{0,40}}{_NAMES}[\w-]{{0,40}}[ =])[^\s-]\S*"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)[ \t]{1,3}[\w.~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,200}@"), rf"\1{MASK}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\b(?:gh[pousr]_|hf_|sk-|xox[bapr]-|glpat-)[\w-]{16,}"), MASK),
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"), MASK),
)


def redact_text(text: str) -> str:
    """Replace values of names that look secret, and keys in well-known formats."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any) -> Any:
    """Redact all texts of a JSON document, and the values of its environment variables."""
    return _redacted(mask_env_vars(value))


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value
