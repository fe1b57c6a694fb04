"""Rules of an operator, from a TOML file: which notifications go where.

server_url = "https://history.example.com"

[[rule]]
name = "team-a"
namespaces = ["team-a"]
events = ["failed", "vanished"]
webhook = "https://hooks.example.com/ray"
secret_file = "/etc/rayhistory/webhook-secret"
"""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from rayhistory.errors import InvalidSetting
from rayhistory.networks import Networks
from rayhistory.notify.notification import Notification
from rayhistory.runs.outcomes import OutcomeKind

_MAX_SECRET_BYTES = 4096


class NotifyRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver, and the notifications that it gets."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
    namespaces: tuple[str, ...] = ("*",)
    runs: tuple[str, ...] = ("*",)
    """Runs that the rule is about: globs over their names."""
    events: tuple[OutcomeKind, ...] = ("failed", "vanished", "regressed", "recovered")
    webhook: str = ""
    slack: str = ""
    url_file: str = ""
    """A file with the URL of the webhook, if the URL is a secret: `webhook = "file"` or `slack = "file"`."""
    command: tuple[str, ...] = ()
    secret_file: str = ""
    allow_networks: tuple[str, ...] = ()
    """Private networks that a webhook may be in."""
    include_text: bool = False
    """True if exception messages and log lines may leave the history server."""

    def matches(self, notification: Notification) -> bool:
        return (
            notification.kind in self.events
            and any(fnmatchcase(notification.namespace, pattern) for pattern in self.namespaces)
            and any(fnmatchcase(notification.name, pattern) for pattern in self.runs)
        )

    @property
    def url(self) -> str:
        return read_secret(self.url_file) if self.url_file else self.webhook or self.slack

    @property
    def secret(self) -> bytes:
        return read_secret(self.secret_file).encode() if self.secret_file else b""

    @property
    def networks(self) -> Networks:
        return Networks(self.allow_networks, f"allow_networks of rule {self.name}")


class NotifyRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[NotifyRule, ...] = ()
    server_url: str = ""
    """The public URL of the history server, for links."""

    def named(self, name: str) -> NotifyRule | None:
        return next((rule for rule in self.rule if rule.name == name), None)


def read_rules(file: str) -> NotifyRules:
    """Read and check a file of rules. Raise InvalidSetting with the reason if it is invalid."""
    try:
        rules = msgspec.convert(tomllib.loads(Path(file).read_text()), NotifyRules)
    except OSError as error:
        raise InvalidSetting(f"--notify-rules={file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidSetting(f"--notify-rules={file}: {error}") from None
    names = [rule.name for rule in rules.rule]
    for rule in rules.rule:
        if problem := _problem(rule, names):
            raise InvalidSetting(f"--notify-rules={file}: rule {rule.name}: {problem}")
    return rules


def _problem(rule: NotifyRule, names: list[str]) -> str:
    targets = [name for name in ("webhook", "slack", "command") if getattr(rule, name)]
    if names.count(rule.name) > 1:
        return "another rule has the same name"
    if len(targets) != 1:
        return "give one of webhook, slack and command"
    if not rule.command and not rule.url_file and urlsplit(rule.url).scheme not in ("http", "https"):
        return f"{targets[0]} is not an http or https URL"
    if rule.command and (rule.secret_file or rule.url_file or rule.allow_networks):
        return "secret_file, url_file and allow_networks are for webhooks"
    for file in filter(None, (rule.secret_file, rule.url_file)):
        if not Path(file).is_file():
            return f"no file {file}"
    rule.networks  # noqa: B018 - raises for an invalid network
    return ""


def read_secret(file: str) -> str:
    """Return the text of a file that an operator named. It is read each time, so that it can be replaced."""
    try:
        return Path(file).read_bytes()[:_MAX_SECRET_BYTES].decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {file}: {error}") from None
