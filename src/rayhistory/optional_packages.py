"""Prevent the import of installed packages that the project does not use."""

import sys


def skip_pandas() -> None:
    """Keep DuckDB from importing pandas, which we do not use. The import takes half a second.

    Only the programs of this project call this. A user's own process may need pandas.
    """
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
