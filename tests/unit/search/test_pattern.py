"""Patterns: hostile ones are rejected or harmless, and required literals never exclude a match."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayhistory.errors import RateLimited, UsageError
from rayhistory.search.pattern import PatternCompiler, SearchPattern
from rayhistory.search.pattern_syntax import required_literal


def matching_lines(pattern: SearchPattern, text: bytes) -> list[bytes]:
    return [text[begin:end] for begin, end in pattern.lines(text, 0, len(text))]


@pytest.mark.parametrize(
    ("text", "regex"),
    [("", False), ("a\nb", False), ("x" * 70_000, False), ("(", True), ("a{100000}", True), ("(?-m)^a", True),
     (r"(a)\1", True), ("(?=a)", True), ("\ud800", False), ("a**", True), ("[z-a]", True)],
)  # fmt: skip
def test_invalid_patterns_are_wrong_requests(text: str, regex: bool) -> None:
    with pytest.raises(UsageError):
        SearchPattern(text, regex=regex)


@pytest.mark.parametrize("word", [False, True])
def test_error_quotes_the_pattern_as_it_was_written(word: bool) -> None:
    with pytest.raises(UsageError) as raised:
        SearchPattern("a(", regex=True, word=word)
    assert str(raised.value) == "invalid pattern: missing ): a("


@pytest.mark.parametrize("regex", ["(a+)+$", "(a|aa)+$", "(.*a){20}", "(x+x+)+y"])
def test_catastrophic_patterns_take_linear_time(regex: str) -> None:
    text = b"a" * 200_000 + b"!\n"
    assert matching_lines(SearchPattern(regex, regex=True), text) in ([], [text[:-1]])


def test_ten_thousand_alternatives_are_found_or_rejected_at_once() -> None:
    regex = "|".join(f"w{number}" for number in range(10_000))
    assert matching_lines(SearchPattern(regex, regex=True), b"a\nthe w9999\n") == [b"the w9999"]


@pytest.mark.parametrize("regex", [".", "", "^", "a*", "x|", "$"])
def test_patterns_that_match_everything_find_each_line_once(regex: str) -> None:
    if regex:
        expected = [b"a", b"b"] if regex == "." else [b"a", b"", b"b"]
        assert matching_lines(SearchPattern(regex, regex=True), b"a\n\nb\n") == expected


def test_ends_of_the_text_are_ends_of_a_line() -> None:
    assert matching_lines(SearchPattern(r"\Ab\z", regex=True), b"a\nb\nbb\n") == [b"b"]


def test_words_are_whole() -> None:
    text = b"error\nerrors\nan error, and\nerror_code\n\xc3\xa9error\n"
    assert matching_lines(SearchPattern("error", word=True), text) == [b"error", b"an error, and"]


@pytest.mark.parametrize(("text", "regex"), [("a\0", False), (r"\x00", True), ("\0b", True)])
def test_nul_is_a_character_like_others(text: str, regex: bool) -> None:
    assert matching_lines(SearchPattern(text, regex=regex), b"ab\nA\0B\n\n") == [b"A\0B"]


def test_case_is_ignored_unless_required() -> None:
    assert matching_lines(SearchPattern("ÜBER"), "über\nÜber\n".encode()) == ["über".encode(), "Über".encode()]
    assert matching_lines(SearchPattern("Error", case=True), b"error\nError\n") == [b"Error"]


@pytest.mark.parametrize(
    ("regex", "literal"),
    [("task [0-9]+ failed", " failed"), ("abc?d", "ab"), ("a|bcd", ""), ("(abc)?d", "d"), (r"a\.bc", "a.bc"),
     ("(?i)abc", ""), (r"\Qa+b\Ec", "a+bc"), ("[abc]x", "x"), ("ab{0}c", "a"), ("x{3,5}", ""),
     ("abc{2,}d", "ab"), ("a{x}bc", "bc"), (r"\d\w", "")],
)  # fmt: skip
def test_the_longest_required_text_of_a_pattern_is_known(regex: str, literal: str) -> None:
    assert required_literal(regex) == literal


@given(st.text("ab(){}?*+|.[]\\01^$Q E", max_size=8), st.text("ab01()?.", max_size=6))
def test_every_match_contains_the_required_text(regex: str, text: str) -> None:
    try:
        pattern = SearchPattern(regex, regex=True, case=False)
    except UsageError:
        return
    line = text.replace("\n", "").encode()
    if matching_lines(pattern, line.lower()) and regex == regex.lower() and not re.search("[A-Z]", regex):
        assert required_literal(regex).encode() in line.lower()


def test_whole_words_may_touch_each_other() -> None:
    """Characters that are no words are words of their own, as for ripgrep."""
    hyphens, dashes = SearchPattern("-", word=True), SearchPattern("–", word=True)
    assert hyphens.spans(b"-- a-", 9) == [(0, 1), (1, 2)]
    assert dashes.spans("––".encode(), 9) == [(0, 3), (3, 6)]
    assert SearchPattern("a", word=True).spans(b"a a aa a", 9) == [(0, 1), (2, 3), (7, 8)]


LARGE = r"[\p{L}\p{N}]{150}"


def test_patterns_are_compiled_beside_the_event_loop() -> None:
    async def run() -> list[str]:
        compiler, events = PatternCompiler(), []

        async def compile_pattern() -> None:
            await compiler.compile(LARGE, "ada", regex=True)
            events.append("compiled")

        async def answer() -> None:
            await asyncio.sleep(0)
            events.append("answered")

        await asyncio.gather(compile_pattern(), answer())
        compiler.close()
        return events

    assert asyncio.run(run()) == ["answered", "compiled"]


def test_large_patterns_in_memory_are_limited_per_visitor_and_in_total() -> None:
    async def run() -> None:
        compiler = PatternCompiler()

        async def compile_large(visitor: str) -> SearchPattern:
            return await compiler.compile(LARGE, visitor, regex=True)

        searches = [await compile_large("ada") for _ in range(2)]
        with pytest.raises(RateLimited):
            await compile_large("ada")
        assert not (await compiler.compile("error.*", "ada", regex=True)).is_large
        searches += [await compile_large(visitor) for visitor in ("bob", "bob", "eve", "eve", "joe", "joe")]
        with pytest.raises(RateLimited):
            await compile_large("tom")
        searches.clear()
        await compile_large("ada")
        compiler.close()

    asyncio.run(run())


def test_invalid_pattern_of_one_visitor_stops_no_other() -> None:
    async def run() -> list[object]:
        compiler = PatternCompiler()
        results = await asyncio.gather(
            *(compiler.compile(text, "ada", regex=True) for text in ("(", "a")), return_exceptions=True
        )
        compiler.close()
        return [type(result) for result in results]

    assert asyncio.run(run()) == [UsageError, SearchPattern]
