"""Store the recorded sample session in a directory, to look at it without a Ray.

.venv/bin/python examples/store_sample.py build/sample
.venv/bin/rayhistory tasks --store file://$PWD/build/sample/store
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.recorded_sample import REF, settings_for, store_sample

directory = Path(sys.argv[1]).absolute()
store_sample(settings_for(directory))
print(f"stored {REF.path} in {settings_for(directory).local_storage_dir}")
