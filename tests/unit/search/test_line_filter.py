"""Candidate lines of Hyperscan include all lines that match."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.errors import UsageError
from rayhistory.search import line_filter
from rayhistory.search.byte_pattern import literal_to_byte_regex, to_byte_regex
from rayhistory.search.pattern import SearchPattern

pytestmark = pytest.mark.slow

pytest.importorskip("hyperscan", reason="this platform has no Hyperscan")

ATOMS = [
    "a", "k", "S", "7", " ", "_", "é", "\u212a", ".", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\.", r"\[", r"\x41",
    r"\x{e9}", r"\t", r"\pL", r"\n", "[a-c]", "[^a-c]", "[kx]", "[^k]", "[é-ü]", "[]a]", "[^]a]", r"[\w-]", r"[\]a]",
    r"[^\W7]", "[[:alpha:]]", r"[a\-c]", "[ -~]", r"[\x00-\x{ff}]", r"\Qa.b\E", "^", "$", r"\b", r"\B", r"\A", r"\z",
]  # fmt: skip
QUANTIFIERS = ["", "*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{2}?", "{"]
PATTERNS = st.recursive(
    st.tuples(st.sampled_from(ATOMS), st.sampled_from(QUANTIFIERS) | st.just("")).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(inner, st.sampled_from(QUANTIFIERS)).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=4,
)
LOG = "\n".join(
    ["", "a", "A", "k", "\u212a", "S", "\u017f", "7", "_", "é", "É", ".", "a.b", "aa", "-a", "a b", "\t", " ", "[", "]",
     "é7", "aé", "ka", "77", "{", "a{", "\U0001f600", "+a", "é-", "x\r"]
).encode() + b"\n\xff\xfe\n\xc3\n\xe2\x84\na\xff\n\n\0\nak"  # fmt: skip
LINES = st.lists(
    st.one_of(
        st.text("aAbkK7sSé\u212a\u017f._- [\t", max_size=8).map(str.encode),
        st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")),
        st.sampled_from([b"", b"\xff\xfe", b"\xc3", b"a.b", b"aaaa", b"\xe2\x84"]),
    ),
    max_size=8,
)


def check(text: str, log: bytes, *, regex: bool, case: bool, word: bool) -> None:
    try:
        with_filter = SearchPattern(text, regex=regex, case=case, word=word)
    except UsageError:
        return
    without = copy.copy(with_filter)
    without._filter = None
    if with_filter._filter:
        with_filter._filter.is_useful = lambda lines, size: True  # type: ignore[method-assign]
    assert matching(log, with_filter) == matching(log, without)


def matching(text: bytes, found: SearchPattern) -> list[tuple[int, int]]:
    return list(found.lines(text, 0, len(text)))


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(PATTERNS, LINES, st.tuples(st.booleans(), st.booleans(), st.booleans()), st.sampled_from([b"", b"\n"]))
def test_filtered_lines_are_those_of_re2_alone(
    text: str, lines: list[bytes], options: tuple[bool, bool, bool], end: bytes
) -> None:
    regex, case, word = options
    check(text, b"\n".join(lines) + end, regex=regex, case=case, word=word)


@pytest.mark.parametrize("atom", ATOMS)
def test_each_piece_of_a_pattern_finds_the_lines_of_re2(atom: str) -> None:
    """Whole words have the filter of their text, so that one shape of a pattern is enough for them."""
    for quantifier in QUANTIFIERS:
        for case in (True, False):
            for text in (f"{atom}{quantifier}", f"^{atom}{quantifier}$", f"({atom}|7{quantifier})a?"):
                check(text, LOG, regex=True, case=case, word=False)
            check(f"{atom}{quantifier}", LOG, regex=True, case=case, word=True)
    check(atom, LOG, regex=False, case=True, word=False)
    check(atom, LOG, regex=False, case=False, word=False)


@pytest.mark.parametrize("text", ["^$", "^", "$", "", "x*$", "^ *$", r"\A\z", r"\B"])
@pytest.mark.parametrize(
    "log", [b"", b"\n", b"\n\n", b"error\n\n", b"error\n\n\n", b"error\n", b"error", b"\nerror\n\n"]
)
def test_empty_lines_are_found_at_the_end(text: str, log: bytes) -> None:
    for case in (True, False):
        check(text, log, regex=True, case=case, word=False)


@pytest.mark.parametrize(
    "regex",
    ["[0-9]{11}[g-z]", r"\b[A-Z]{12}\b", r"^\S+ [0-9]+$", "(a+)+$", "error|fail(ed|ure)", "wombat", "über", ".*x"],
)
def test_usual_patterns_have_a_filter(regex: str) -> None:
    assert line_filter.make_filter(regex, regex=True, case=True) is not None


@pytest.mark.parametrize("regex", ["(?:[a-z]{0,200}x){20}", "[a-z]{1,1000}", "(?i)a", r"\pL", "(ab){3}", "a" * 200])
def test_other_patterns_are_left_to_re2(regex: str) -> None:
    assert to_byte_regex(regex, case=True) is None


def test_letters_whose_other_case_has_another_length_are_left_to_re2() -> None:
    assert literal_to_byte_regex("über", case=False) is None
    assert literal_to_byte_regex("x" * 200, case=True) is None


def test_many_matching_lines_are_left_to_re2() -> None:
    text = b"".join(b"line %d\n" % number for number in range(1000))
    found = line_filter.make_filter("line", regex=False, case=True)
    assert found
    assert found.is_useful(1000, 1000 * 2001)
    assert not found.is_useful(1000, len(text))
    assert len(matching(text, SearchPattern("line"))) == 1000


def test_threads_share_a_filter() -> None:
    found = line_filter.make_filter("wombat", regex=False, case=True)
    assert found
    text = b"x" * 100_000 + b" wombat\n"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            positions = set(pool.map(lambda _: found.candidate(text, 0, len(text)), range(2000)))
    finally:
        sys.setswitchinterval(interval)
    assert positions == {len(text) - 1}
