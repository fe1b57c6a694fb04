"""Fold the recorded sample session in this process, to step through it in a debugger.

.venv/bin/python -m pdb -c "break rayhistory/events/entity_rows.py:172" -c continue examples/fold_session.py
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.folding import END, RECORDED, as_lines, fold_session, put, rows

with tempfile.TemporaryDirectory() as directory:
    store = Path(directory)
    put(store, 0, as_lines(RECORDED))
    manifest = fold_session(store, END)
    for row in rows(store, manifest, "SELECT name, state, error_type FROM tasks ORDER BY name LIMIT 10"):
        print(*row)
