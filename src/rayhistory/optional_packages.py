"""Packages that our libraries import just because they are installed."""

import sys


def skip_pandas() -> None:
    """Keep DuckDB from importing pandas into a process of ours: no process uses it, and the import takes half a second.

    Only programs call this. In the process of a user of the library, pandas is the user's.
    """
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
