"""The sizing page has the costs that tools/cost.py computes."""

import subprocess
import sys

import pytest

from support.paths import DOCS, ROOT

sys.path.insert(0, str(ROOT / "tools"))

from cost import PRICES, gigabytes, puts, table

PAGE = (DOCS / "how-to/kubernetes/sizing.md").read_text()


def test_table_of_the_page_is_computed() -> None:
    assert table(PRICES) in PAGE


def test_figures_in_the_text_are_those_of_the_table() -> None:
    for interval in (5, 30, None):
        assert f"{puts(interval):,.0f} PUTs" in PAGE
    assert f"{gigabytes():.0f} GB" in PAGE


@pytest.mark.parametrize(("arguments", "code"), [(["--put", "0.01", "--gb", "0.02"], 0), (["--put", "0.01"], 2)])
def test_own_prices_replace_the_list(arguments: list[str], code: int) -> None:
    command = [sys.executable, str(ROOT / "tools/cost.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("| your store (your prices) | $0.0100 | $0.020 | $7.80 |" in done.stdout) == (code == 0)
