"""The result of one check of `rayhistory doctor`."""

import msgspec


class CheckResult(msgspec.Struct):
    passed: bool
    text: str
    hint: str = ""
    required: bool = True
    """If true, a failure makes the command fail. Otherwise it is only a note."""
