"""The result of one check of `rayhistory doctor`."""

import msgspec


class CheckResult(msgspec.Struct):
    passed: bool
    text: str
    hint: str = ""
    required: bool = True
    """True if a failure of this check makes the command fail. Otherwise the failure is only a note."""
