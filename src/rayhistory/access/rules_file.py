"""The access file (`--access-file`): visitors and their namespaces. The server reloads it when it changes.

# kind   name       (token)                          namespaces
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
from rayhistory.errors import InvalidSetting
from rayhistory.names import parse_dns_name

log = logging.getLogger(__name__)

_MIN_TOKEN_CHARS = 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Rules(msgspec.Struct, frozen=True):
    tokens: dict[str, Visitor]
    """Visitors by the digest of their token, so that the time of a lookup reveals nothing about valid tokens."""
    users: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]

    def of_token(self, token: str) -> Visitor | None:
        return self.tokens.get(digest(token))

    def of_user(self, name: str, groups: tuple[str, ...]) -> Visitor:
        namespaces = list(self.users.get(name, ()))
        for group in groups:
            namespaces += self.groups.get(group, ())
        return Visitor(name, groups=groups, namespaces=tuple(namespaces))


def digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


class RulesFile:
    """Access rules, reloaded when the file changes.

    An invalid file is an error at start. Later, the previous rules stay in force.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fingerprint = self._read_fingerprint()
        self._rules = read_rules(path)

    def rules(self) -> Rules:
        fingerprint = self._read_fingerprint()
        if fingerprint is not None and fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            try:
                self._rules = read_rules(self._path)
                log.info("access file reloaded", extra={"file": str(self._path)})
            except InvalidSetting as error:
                log.error(  # noqa: TRY400
                    "access file is invalid, keeping the previous rules", extra={"reason": str(error)}
                )
        return self._rules

    def _read_fingerprint(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def read_rules(path: Path) -> Rules:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--access-file={path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    rules = Rules({}, {}, {})
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            if words:
                _add(rules, *words)
        except (ValueError, TypeError) as error:
            reason = error if isinstance(error, ValueError) else "use: token NAME TOKEN NAMESPACES, or user|group …"
            raise InvalidSetting(f"--access-file={path}, line {number}: {reason}") from None
    return rules


def _add(rules: Rules, kind: str, name: str, *rest: str) -> None:
    if kind == "token":
        token, namespaces = _pair(rest, "token NAME TOKEN NAMESPACES")
        if token.startswith("sha256:") and not _DIGEST.fullmatch(token):
            raise ValueError("sha256: must be followed by 64 lower-case hexadecimal digits")
        if len(token) < _MIN_TOKEN_CHARS:
            raise ValueError(f"a token needs at least {_MIN_TOKEN_CHARS} characters")
        key = token if token.startswith("sha256:") else digest(token)
        if key in rules.tokens:
            raise ValueError("token is already used by another line")
        rules.tokens[key] = Visitor(name, namespaces=_namespaces(namespaces))
    elif kind in ("user", "group"):
        if len(rest) != 1:
            raise ValueError(f"use: {kind} NAME NAMESPACES")
        table = rules.users if kind == "user" else rules.groups
        table[name] = (*table.get(name, ()), *_namespaces(rest[0]))
    else:
        raise ValueError(f"{kind!r} is not token, user or group")


def _pair(words: tuple[str, ...], usage: str) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError(f"use: {usage}")
    return words[0], words[1]


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        prefix = name.removesuffix("*").rstrip("-.")
        if name != "*" and prefix:
            parse_dns_name(prefix)
        elif name != "*":
            raise ValueError(f"{name!r} is not a valid namespace")
    return names
