"""The file that says who may see which namespaces. It is read again when it changes.

# kind   who        (token)                          namespaces
token    ci         sha256:6a5f…                     team-a,team-b
user     ada@example.com                             team-*
group    "data engineers"                            *
"""

import hashlib
import logging
import re
import shlex
from pathlib import Path

import msgspec

from rayhistory.access.visitor import Visitor
from rayhistory.errors import Misconfigured
from rayhistory.settings import parse_name

log = logging.getLogger(__name__)

_SHORTEST_TOKEN = 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Rules(msgspec.Struct, frozen=True):
    tokens: dict[str, Visitor]
    """By the digest of the token: comparing tells nothing about the tokens that there are."""
    users: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]

    def of_token(self, token: str) -> Visitor | None:
        return self.tokens.get(digest(token))

    def of_user(self, name: str, groups: tuple[str, ...]) -> Visitor:
        given = list(self.users.get(name, ()))
        for group in groups:
            given += self.groups.get(group, ())
        return Visitor(name, groups=groups, namespaces=tuple(given))


def digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


class RulesFile:
    """A file that cannot be read at the start is a mistake; later, what was read before stays in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._look()
        self._rules = read_rules(path)

    def rules(self) -> Rules:
        stamp = self._look()
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._rules = read_rules(self._path)
                log.info("the rules of access were read again", extra={"file": str(self._path)})
            except Misconfigured as error:
                log.error("the rules of access stay as they were", extra={"reason": str(error)})  # noqa: TRY400
        return self._rules

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_rules(path: Path) -> Rules:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--access-file={path}: {getattr(error, 'strerror', None) or 'not a text'}") from None
    rules = Rules({}, {}, {})
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                _add(rules, *words)
        except (ValueError, TypeError) as error:
            said = error if isinstance(error, ValueError) else "use: token NAME TOKEN NAMESPACES, or user|group …"
            raise Misconfigured(f"--access-file={path}, line {number}: {said}") from None
    return rules


def _add(rules: Rules, kind: str, who: str, *rest: str) -> None:
    if kind == "token":
        token, namespaces = _pair(rest, "token NAME TOKEN NAMESPACES")
        if token.startswith("sha256:") and not _DIGEST.fullmatch(token):
            raise ValueError("sha256: is followed by 64 hexadecimal digits in lower case")
        if len(token) < _SHORTEST_TOKEN:
            raise ValueError(f"a token has at least {_SHORTEST_TOKEN} characters")
        key = token if token.startswith("sha256:") else digest(token)
        if key in rules.tokens:
            raise ValueError("this token is there already")
        rules.tokens[key] = Visitor(who, namespaces=_namespaces(namespaces))
    elif kind in ("user", "group"):
        if len(rest) != 1:
            raise ValueError(f"use: {kind} NAME NAMESPACES")
        known = rules.users if kind == "user" else rules.groups
        known[who] = (*known.get(who, ()), *_namespaces(rest[0]))
    else:
        raise ValueError(f"{kind!r} is not token, user or group")


def _pair(words: tuple[str, ...], usage: str) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError(f"use: {usage}")
    return words[0], words[1]


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        begin = name.removesuffix("*")
        if name != "*" and begin.rstrip("-.") != "":
            parse_name(begin.rstrip("-."))
        elif name != "*":
            raise ValueError(f"not a namespace: {name!r}")
    return names
