"""Values of environment variables are hidden in lines of logs."""

import pytest

from rayhistory.masking import MASK
from rayhistory.search.env_var_mask import masked_line


@pytest.mark.parametrize(
    "line",
    [
        'runtime_env {"env_vars": {"TOKEN": "s3cret", "B": "}s3cret"}, "pip": []} ready',
        "context={'env_vars': {'TOKEN': 's3cret'}} ready",
        '"{\\"env_vars\\": {\\"TOKEN\\": \\"s3cret\\"}}" ready',
        'envVars": {"TOKEN": "s3cret',
        'env_vars": {"A": {"B": "s3cret"}} ready',
        "env_vars={'A': 's3cret'} and env_vars={'A': 's3cret'} ready",
    ],
)
def test_values_are_hidden(line: str) -> None:
    text, _ = masked_line(line)
    assert "s3cret" not in text
    assert MASK in text
    assert text.endswith("ready") == line.endswith("ready")


def test_matches_keep_their_text_and_hidden_ones_vanish() -> None:
    line = 'one {"env_vars": {"TOKEN": "one two"}} two'
    spans = [(start, start + 3) for start in range(len(line)) if line[start : start + 3] in ("one", "two")]
    text, moved = masked_line(line, spans)
    assert [text[slice(*span)] for span in moved] == ["one", "two"]


def test_other_lines_stay_as_they_are() -> None:
    assert masked_line("an environment {1}", [(3, 5)]) == ("an environment {1}", [(3, 5)])
