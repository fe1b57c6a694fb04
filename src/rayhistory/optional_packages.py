"""Packages that our libraries would import only because they are installed."""

import sys


def skip_pandas() -> None:
    """Keep DuckDB from importing pandas, which we do not use. The import takes half a second.

    Only our programs call this. In a user's process, pandas belongs to the user.
    """
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
