"""Names for syntax that the parser does not know: experimental features of Prometheus, off by default."""

import re

from rayhistory.promql.query_errors import NotSupported

_FEATURES = (
    (re.compile(r"\b(?:anchored|smoothed)\b", re.IGNORECASE), "the modifiers anchored and smoothed are not supported"),
    (re.compile(r"</|>/"), "the operators </ and >/ of native histograms are not supported"),
)


def check_unsupported(code: str) -> None:
    """Raise an error that names the unsupported syntax of a query, whose strings are masked."""
    for pattern, message in _FEATURES:
        if pattern.search(code):
            raise NotSupported(message)
