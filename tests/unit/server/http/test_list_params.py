"""Parameters that lists share."""

import pytest
from starlette.datastructures import QueryParams

from rayhistory.errors import UsageError
from rayhistory.server.http.list_params import age_ms, parse_owner, parse_page, parse_words


@pytest.mark.parametrize(
    ("text", "ms"), [("24h", 86_400_000), ("7d", 604_800_000), ("7", None), ("1m", None), ("-1h", None), ("", None)]
)
def test_ages_are_hours_or_days(text: str, ms: int | None) -> None:
    assert age_ms(text) == ms


@pytest.mark.parametrize(("text", "page"), [("", 1), ("1", 1), ("12", 12), ("9" * 5000, 10**9)])
def test_page_numbers_are_bounded(text: str, page: int) -> None:
    assert parse_page(QueryParams({"page": text})) == page


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "٣"])
def test_other_pages_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="use a number from 1"):
        parse_page(QueryParams({"page": text}))


def test_owner_is_a_kind_or_a_kind_and_a_name() -> None:
    kinds = ("rayjob", "rayservice")
    assert parse_owner(QueryParams({"owner": " RayJob/Nightly "}), kinds) == "rayjob/nightly"
    with pytest.raises(UsageError, match="use rayjob, rayservice, or a kind and a name"):
        parse_owner(QueryParams({"owner": "none"}), kinds)


def test_number_of_words_is_bounded() -> None:
    with pytest.raises(UsageError, match="at most 32 words"):
        parse_words(QueryParams({"q": "a " * 33}))
