"""Our programs do not import packages that they do not use."""

import subprocess
import sys

PROGRAM = """
import sys
import duckdb
from rayhistory.optional_packages import skip_pandas
skip_pandas()
print(duckdb.connect().execute("SELECT ?", [7]).fetchall(), sys.modules["pandas"])
"""


def test_database_works_without_importing_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[(7,)] None\n"
