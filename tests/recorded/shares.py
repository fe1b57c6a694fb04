"""Where the comparison of live with dead leaves its figures, for the end of the run."""

import pytest

SHARES: pytest.StashKey[list[str]] = pytest.StashKey()
