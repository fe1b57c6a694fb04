"""Missing modules are named, for one task and for several."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.exceptions.raised import session_with_task

ERROR = (
    'User exception:\n  File "/app/train.py", line 4, in train\n    import lightgbm.basic\n'
    "ModuleNotFoundError: No module named 'lightgbm.basic'; 'lightgbm' is not a package"
)


@pytest.mark.parametrize(("count", "subject"), [(1, "Task train needs a module"), (4, "4 train tasks need a module")])
def test_headline_agrees_with_the_number_of_tasks(count: int, subject: str) -> None:
    (finding,) = diagnose(session_with_task(ERROR, count=count)).findings
    assert finding.headline.startswith(f"{subject} that is not installed: ModuleNotFoundError: No module named")
    assert finding.suggestion.startswith("Install the package with the module lightgbm where the job runs")
