"""Inputs that are nearly right: bytes that were hit, and JSON in which something is not what it should be."""

import json
import random
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**40, 1.5, -0.0, 1e308, "", " ", "0", "-1", "nan",
    "x" * 300, "\0", "\ud83d\ude00", "../../x", "1e999", "9" * 400, "2026-11-15T19:18:08Z", "9999-12-31T23:59:60Z", [],
    {}, [[]], [None], {"": ""}, {"a": {"b": {"c": []}}}, [1, "a", None, {}], "AQAAAA==", "ff" * 24, "\u202e", "²",
]  # fmt: skip
_DEEP = "here it goes deep"
_BYTES = [
    b"\0",
    b"\xff",
    b"[",
    b"{",
    b'"',
    b"\n",
    b"\\u0000",
    b"/",
    b"..",
    b"-",
    b"1" * 30,
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One or a few changes; JSON lines are changed as JSON more often than not."""
    if dice.random() < 0.7:
        lines = data.split(b"\n")
        at = dice.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except (ValueError, RecursionError):
            return hit(data, dice)
        for _ in range(dice.choice((1, 1, 2, 5))):
            document = changed(document, dice)
        text = json.dumps(document, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
        depth = dice.choice((3, 900, 2_000))
        lines[at] = text.replace(f'"{_DEEP}"'.encode(), b"[" * depth + b"]" * depth)
        return b"\n".join(lines)
    return hit(data, dice)


def hit(data: bytes, dice: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at, length = dice.randrange(len(content) + 1), dice.choice((1, 1, 2, 4, 16, 200))
        match dice.randrange(6):
            case 0 if content:
                content[min(at, len(content) - 1)] = dice.randrange(256)
            case 1:
                del content[at : at + length]
            case 2:
                content[at:at] = dice.choice(_BYTES)
            case 3:
                content[at:at] = content[at : at + length]
            case 4:
                del content[at:]
            case _:
                content[at : at + length] = dice.randbytes(length)
    return bytes(content)


def changed(value: Any, dice: random.Random, depth: int = 0) -> Any:
    """The same tree with one place changed: another value, another name, gone, doubled or deeper."""
    if isinstance(value, dict) and value and dice.random() < 0.85 and depth < 50:
        key = dice.choice(list(value))
        match dice.randrange(10):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, dice.choice(("", "x", key.upper(), key + "s")): value[key]}
            case _:
                return {**value, key: changed(value[key], dice, depth + 1)}
    if isinstance(value, list) and value and dice.random() < 0.85 and depth < 50:
        at = dice.randrange(len(value))
        match dice.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], changed(value[at], dice, depth + 1), *value[at + 1 :]]
    return _DEEP if dice.random() < 0.05 else dice.choice(ODD)
