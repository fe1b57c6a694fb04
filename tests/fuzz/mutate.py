"""Mutation of valid inputs: changed bytes, and JSON with unexpected values."""

import json
import random
from typing import Any

UNEXPECTED_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**40, 1.5, -0.0, 1e308, "", " ", "0", "-1", "nan",
    "x" * 300, "\0", "\ud83d\ude00", "../../x", "1e999", "9" * 400, "2026-11-15T19:18:08Z", "9999-12-31T23:59:60Z", [],
    {}, [[]], [None], {"": ""}, {"a": {"b": {"c": []}}}, [1, "a", None, {}], "AQAAAA==", "ff" * 24, "\u202e", "²",
]  # fmt: skip
_NESTING_PLACEHOLDER = "nested arrays"
_INSERTED_BYTES = [
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


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Make a few changes; JSON lines are mostly changed as JSON."""
    if rng.random() < 0.7:
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except (ValueError, RecursionError):
            return mutate_bytes(data, rng)
        for _ in range(rng.choice((1, 1, 2, 5))):
            document = mutate_json(document, rng)
        text = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        depth = rng.choice((3, 900, 2_000))
        lines[at] = text.replace(f'"{_NESTING_PLACEHOLDER}"'.encode(), b"[" * depth + b"]" * depth)
        return b"\n".join(lines)
    return mutate_bytes(data, rng)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(content) + 1), rng.choice((1, 1, 2, 4, 16, 200))
        match rng.randrange(6):
            case 0 if content:
                content[min(at, len(content) - 1)] = rng.randrange(256)
            case 1:
                del content[at : at + length]
            case 2:
                content[at:at] = rng.choice(_INSERTED_BYTES)
            case 3:
                content[at:at] = content[at : at + length]
            case 4:
                del content[at:]
            case _:
                content[at : at + length] = rng.randbytes(length)
    return bytes(content)


def mutate_json(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """Change one value of a JSON tree: replace, rename, remove, duplicate or nest it."""
    if isinstance(value, dict) and value and rng.random() < 0.85 and depth < 50:
        key = rng.choice(list(value))
        match rng.randrange(10):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, rng.choice(("", "x", key.upper(), key + "s")): value[key]}
            case _:
                return {**value, key: mutate_json(value[key], rng, depth + 1)}
    if isinstance(value, list) and value and rng.random() < 0.85 and depth < 50:
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], mutate_json(value[at], rng, depth + 1), *value[at + 1 :]]
    return _NESTING_PLACEHOLDER if rng.random() < 0.05 else rng.choice(UNEXPECTED_VALUES)
