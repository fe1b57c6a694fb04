"""The result of one check of `rayhistory doctor`."""

import msgspec


class CheckResult(msgspec.Struct):
    passed: bool
    text: str
    hint: str = ""
    required: bool = True
    """A failure makes the command fail; otherwise it is a note."""
