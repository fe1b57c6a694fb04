"""Remove terminal sequences, such as colours, from text of a cluster."""

import re

_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: title, hyperlink
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colors, cursor
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"  # all others
)


def strip_ansi(text: str) -> str:
    """Remove terminal sequences completely, so that no `[31m` remains."""
    return _SEQUENCE.sub("", text)
