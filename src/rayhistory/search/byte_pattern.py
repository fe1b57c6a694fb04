"""Translate a regular expression to one over bytes that matches wherever the original does, and perhaps elsewhere.

Hyperscan then accepts text that is not valid UTF-8. A class with non-ASCII characters becomes one that also accepts
any bytes above ASCII. Hyperscan's compiler is slow for large repetitions, so only short expressions are translated. For
all others the result is None.
"""

import re
import string

from rayhistory.search.pattern_syntax import TOKEN

_MAX_ITEMS = 128
"""Maximum number of characters and classes in an expression. `a{2,5}` counts as five."""
_ANY_CHARACTER = r"[\x80-\xff]{1,4}"
_WORD, _DIGITS, _SPACES = (frozenset(map(ord, some)) for some in (
    string.ascii_letters + string.digits + "_", string.digits, "\t\n\f\r "
))  # fmt: skip
_ASCII = frozenset(range(128))
_CLASSES = {"w": _WORD, "d": _DIGITS, "s": _SPACES, "W": _ASCII - _WORD, "D": _ASCII - _DIGITS, "S": _ASCII - _SPACES}
_CONTROLS = {"t": 9, "f": 12, "r": 13, "v": 11, "a": 7}
_ODD_CASE = frozenset(b"kKsS")
"""Letters that also match non-ASCII letters if case is ignored."""
_REPETITION = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_CLASS_PART = re.compile(r"\\x\{([0-9a-fA-F]+)\}|\\x([0-9a-fA-F]{2})|\\(.)|([^\\\[])|(\[(?!:))", re.DOTALL)


class _Untranslatable(Exception):
    pass


def to_byte_regex(pattern: str, *, case: bool) -> bytes | None:
    """Translate a valid expression in RE2's syntax, or a result of `to_line_regex`; None if that is not possible."""
    try:
        parts = _translate(pattern, case=case)
    except _Untranslatable:
        return None
    return "".join(parts).encode()


def literal_to_byte_regex(text: str, *, case: bool) -> bytes | None:
    """Translate a literal text."""
    if len(text) > _MAX_ITEMS:
        return None
    try:
        return "".join(_character(ord(letter), case=case) for letter in text).encode()
    except _Untranslatable:
        return None


def _translate(pattern: str, *, case: bool) -> list[str]:
    parts: list[str] = []
    items, is_quantified = 0, False
    for match in TOKEN.finditer(pattern):
        piece, quoted = match[0], match["quoted"]
        repetition = _REPETITION.fullmatch(piece)
        if repetition and parts[-1] == ")":
            raise _Untranslatable  # nested repetitions multiply
        if repetition:
            items += max(int(repetition[1]), int(repetition[2] or 0))
            parts.append(piece)
        elif quoted is not None:
            items += len(quoted)
            parts += [_character(ord(letter), case=case) for letter in quoted]
        elif piece != "?" or not is_quantified:  # lazy quantifiers match the same lines
            items += 1
            parts.append(_translate_piece(piece, case=case))
        is_quantified = bool(repetition) or piece in {"*", "+", "?"}
        if items > _MAX_ITEMS:
            raise _Untranslatable
    return parts


def _translate_piece(piece: str, *, case: bool) -> str:
    """Translate a piece that is neither quoted text nor a repetition."""
    if piece in {"^", "$", "*", "+", "?", "|", ")", r"\b", r"\B"}:
        return piece
    if piece in {"(", "(?:"}:
        return "(?:"
    if piece == ".":
        return _class(_ASCII, with_others=True)
    if piece.startswith("["):
        return _parse_class(piece, case=case)
    if piece.startswith("\\") and piece[1:2] in _CLASSES:
        return _class(_CLASSES[piece[1]], with_others=piece[1].isupper() or (piece[1] == "w" and not case))
    if piece.startswith("(?"):
        raise _Untranslatable
    return _character(_code(_CLASS_PART.fullmatch(piece)), case=case)


def _code(part: re.Match[str] | None) -> int:
    """Return the code of a character or of an escaped character."""
    if part is None or part[5] or part[3] in _CLASSES:
        raise _Untranslatable
    if hexadecimal := part[1] or part[2]:
        return int(hexadecimal, 16)
    if letter := part[4]:
        return ord(letter)
    if part[3] in _CONTROLS:
        return _CONTROLS[part[3]]
    if part[3].isalnum() or not part[3].isascii():
        raise _Untranslatable
    return ord(part[3])


def _character(code: int, *, case: bool) -> str:
    if code < 128:
        return _class(frozenset({code}), with_others=False) if case else _folded({code}, with_others=False)
    if not case:
        raise _Untranslatable  # it may match letters of other lengths
    return "(?:" + "".join(f"\\x{byte:02x}" for byte in chr(code).encode()) + ")"


def _parse_class(text: str, *, case: bool) -> str:
    """Translate a class in brackets."""
    negated = text.startswith("[^")
    body, position = text[2 if negated else 1 : -1], 0
    members: set[int] = set()
    others = negated
    while position < len(body):
        part = _CLASS_PART.match(body, position)
        if part and part[3] in _CLASSES:
            members |= _CLASSES[part[3]]
            others |= part[3].isupper()
            position = part.end()
            continue
        first = last = _code(part)
        position = part.end() if part else len(body)
        if body[position : position + 1] == "-" and position + 1 < len(body):
            part = _CLASS_PART.match(body, position + 1)
            last, position = _code(part), part.end() if part else len(body)
        others |= last > max(_ASCII)
        members |= set(range(first, min(last, max(_ASCII)) + 1))
    if not case:
        members |= _both_cases(members)
        others |= bool(members & _ODD_CASE)
    return _class(frozenset(_ASCII - members if negated else members), with_others=others)


def _folded(members: set[int], *, with_others: bool) -> str:
    members = members | _both_cases(members)
    return _class(frozenset(members), with_others=with_others or bool(members & _ODD_CASE))


def _both_cases(members: set[int]) -> set[int]:
    return {ord(chr(code).swapcase()) for code in members if code < 128}


def _class(members: frozenset[int], *, with_others: bool) -> str:
    """Return a class of ASCII characters without the newline. `with_others` adds all non-ASCII characters."""
    codes = sorted(members - {ord("\n")})
    if not codes:
        if not with_others:
            raise _Untranslatable  # it matches nothing
        return f"(?:{_ANY_CHARACTER})"
    ranges, start = [], codes[0]
    for code, following in zip(codes, [*codes[1:], -1], strict=True):
        if following != code + 1:
            ranges.append(f"\\x{start:02x}-\\x{code:02x}")
            start = following
    found = f"[{''.join(ranges)}]"
    return f"(?:{found}|{_ANY_CHARACTER})" if with_others else found
