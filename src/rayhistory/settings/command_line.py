"""Resolve command lines and environment variables into `Settings`."""

import argparse
import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from rayhistory.errors import InvalidSetting, UsageError
from rayhistory.settings.parsers import BACKEND_OF_SCHEME, parse_bool, parse_port
from rayhistory.settings.setting_spec import COLLECTOR, SERVER, SettingSpec
from rayhistory.settings.table import Settings, setting_specs

MOUNTED_CONFIG = Path("/var/collector-config/data")
"""Path of the backend's JSON file in early versions of KubeRay's collector."""
MOUNTED_DASHBOARDS = Path("/dashboard")
"""Directory of the dashboard frontends in our container images."""

_ENVIRONMENT_WINS = frozenset({COLLECTOR, SERVER})


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors and suggestions, and without abbreviated flags."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        message = message.replace("unrecognized arguments:", "unknown flag or argument:")
        if match := _INVALID_CHOICE.fullmatch(message):
            message = f"unknown {match[1].lower()} {match[2]!r}{_suggestion(match[2], match[3])}"
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)

    def _get_option_tuples(self, option_string: str) -> list[tuple[argparse.Action, str, str | None]]:
        """Accept a letter with its value, as in `-C2`, but no abbreviated flag with a single dash."""
        found = super()._get_option_tuples(option_string)
        return [each for each in found if each[1] in (option_string.partition("=")[0], option_string[:2])]

    def assign_late(self, arguments: argparse.Namespace, words: Sequence[str]) -> None:
        """Assign words that follow a flag to the optional positional arguments, and reject others.

        argparse does this only if no other positional argument precedes the flag, as in `grep PATTERN -i SESSION`.
        """
        free = [
            action
            for action in self._actions
            if not action.option_strings and action.nargs == "?" and getattr(arguments, action.dest, None) is None
        ]
        if len(words) > len(free) or any(word.startswith("-") for word in words):
            self.reject(words)
        for action, word in zip(free, words, strict=False):
            action(self, arguments, word)

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Report unknown arguments, and suggest a similar flag."""
        word = unknown[0].partition("=")[0]
        suggestion = _suggested_flags(word, self._documented_flags()) if word.startswith("-") else ""
        self.error(f"unknown flag or argument: {' '.join(unknown)}{suggestion}")

    def _documented_flags(self) -> list[str]:
        documented = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [flag for action in documented for flag in action.option_strings if flag.startswith("--")]

    def shorten_usage(self) -> None:
        """Show only positional arguments in the usage line, also of actions. Flags are listed below it."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    parser.shorten_usage()
        if self.usage:
            return
        words = [_usage_of(action) for action in self._actions if not action.option_strings]
        self.usage = " ".join([self.prog, "[options]", *words]).replace("%", "%%")


def _usage_of(positional: argparse.Action) -> str:
    name = f"{positional.metavar or positional.dest}{'…' if positional.nargs in ('+', '*') else ''}"
    return f"[{name}]" if positional.nargs in ("?", "*") or not positional.required else name


_INVALID_CHOICE = re.compile(r"argument (COMMAND|ACTION): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)

_ONE_LETTER = re.compile("-[a-z]", re.IGNORECASE)
_MAX_SUGGESTIONS = 3


def _suggestion(word: str, choices: str | Sequence[str]) -> str:
    names = re.findall(r"'([^']+)'", choices) if isinstance(choices, str) else choices
    near = difflib.get_close_matches(word, names, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _suggested_flags(word: str, flags: Sequence[str]) -> str:
    """Suggest a similar flag; for one letter, the flags that start with it."""
    if not _ONE_LETTER.fullmatch(word):
        near = difflib.get_close_matches(word.lstrip("-"), [flag.lstrip("-") for flag in flags], n=1)
        return f": did you mean --{near[0]}?" if near else ""
    near = [flag for flag in flags if flag.startswith(f"-{word}")][:_MAX_SUGGESTIONS]
    return f": did you mean {' or '.join(near)}?" if near else ""


def parse_command_line(program: str, argv: Sequence[str], description: str) -> tuple[Settings, list[str]]:
    """Return settings and warnings for a program whose only arguments are its settings."""
    parser = Parser(prog=program, description=description)
    add_flags(parser, program)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.reject(unknown)
    try:
        return resolve(program, vars(arguments))
    except UsageError as error:
        parser.error(str(error))


def add_flags(parser: argparse._ActionsContainer, program: str, names: frozenset[str] | None = None) -> None:
    """Add the flags of a program's settings to a parser or group, or only those of the named settings."""
    for spec in setting_specs():
        if program not in spec.programs or not spec.flags or (names is not None and spec.name not in names):
            continue
        documented, *spellings = spec.flags
        text = argparse.SUPPRESS if spec.unused else _help_line(spec)
        for flags, help_text in (([documented], text), (spellings, argparse.SUPPRESS)):
            parser.add_argument(
                *flags,
                dest=f"setting_{spec.name}",
                metavar=spec.metavar,
                default=argparse.SUPPRESS,
                help=help_text,
                **_optional_value(spec),
            )


def _optional_value(spec: SettingSpec) -> dict[str, Any]:
    """Allow a boolean flag without a value, as in Go."""
    return {"nargs": "?", "const": "true"} if spec.parse is parse_bool else {}


def _help_line(spec: SettingSpec) -> str:
    hide_default = spec.default in ("", ()) or "(default" in spec.description
    default = "" if hide_default else f" (default: {spec.default_text})"
    return f"{spec.description}{default} [{', '.join(spec.all_variables)}]".replace("%", "%%")


def resolve(
    program: str, arguments: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> tuple[Settings, list[str]]:
    """Return settings from parsed arguments and the environment, and warnings about ignored values.

    An invalid value of one of KubeRay's variables is ignored, as KubeRay does, so that a sidecar does not crash-loop.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for spec in setting_specs():
        if program not in spec.programs:
            continue
        from_flag = _from_flag(spec, arguments)
        from_environment = _from_environment(spec, environ, warnings)
        candidates = [from_flag, from_environment]
        if program not in _ENVIRONMENT_WINS:
            candidates.reverse()
        for value in candidates:
            if value is not None:
                values[spec.name] = value
        if spec.unused and from_flag is not None:
            warnings.append(f"{spec.flag} is accepted for compatibility and has no effect")
    if program == COLLECTOR and not values.get("role") and not values.get("ray_head"):
        warnings.append("role not set, assuming Worker: on the head node, set --role=Head")
    return _with_defaults(Settings(**_expand_store_url(values))), warnings


def _from_flag(spec: SettingSpec, arguments: Mapping[str, Any]) -> Any:
    text = arguments.get(f"setting_{spec.name}")
    if text is None:
        return None
    try:
        return spec.parse(text)
    except ValueError as error:
        raise InvalidSetting(f"{spec.flag}={text}: {error}") from None


def _from_environment(spec: SettingSpec, environ: Mapping[str, str], warnings: list[str]) -> Any:
    text = environ.get(spec.own_variable, "")
    if "://" in text and spec.parse is parse_port:
        text = ""  # Kubernetes sets <SERVICE>_PORT=tcp://… for a Service named rayhistory
    if text:
        try:
            return spec.parse(text)
        except ValueError as error:
            raise InvalidSetting(f"{spec.own_variable}={text}: {error}") from None
    for variable in spec.variables:
        text = environ.get(variable, "")
        if not text:
            continue
        try:
            return spec.parse(text)
        except ValueError as error:
            if spec.strict:
                raise InvalidSetting(f"{variable}={text}: {error}") from None
            warnings.append(f"{variable}={text} is ignored: {error}")
    return None


def _expand_store_url(values: dict[str, Any]) -> dict[str, Any]:
    """Set the settings that --store implies. Other settings may repeat the URL, but not contradict it."""
    url: str = values.get("store", "")
    if not url:
        return values
    scheme, _, rest = url.partition("://")
    implied = {"storage_backend": BACKEND_OF_SCHEME.get(scheme, scheme)}
    if scheme == "file":
        implied["local_storage_dir"] = unquote(rest)
    elif prefix := rest.partition("/")[2].strip("/"):
        implied["storage_root_dir"] = prefix
    for name, value in implied.items():
        given = values.get(name)
        if given and given.strip("/") != value.strip("/"):
            raise InvalidSetting(f"--store={url} and {name.upper()}={given} contradict each other: set only one")
    return values | implied


def _with_defaults(settings: Settings) -> Settings:
    """Fill in defaults that depend on other settings or on the machine."""
    if bool(settings.owner_kind) != bool(settings.owner_name):
        raise InvalidSetting("set both OWNER_KIND and OWNER_NAME, or neither")
    if not (settings.enable_event_collector or settings.enable_log_collector):
        raise InvalidSetting(
            "ENABLE_EVENT_COLLECTOR and ENABLE_LOG_COLLECTOR are both false: enable at least one of them"
        )
    cache_dir = settings.cache_dir or default_cache_dir()
    return dataclasses.replace(
        settings,
        local_storage_dir=settings.local_storage_dir or default_data_dir(),
        cache_dir=cache_dir,
        dashboard_dir=settings.dashboard_dir or _default_dashboard_dir(cache_dir),
        role="Head" if settings.ray_head else settings.role,
        storage_backend_config_path=settings.storage_backend_config_path or _mounted_config(),
    )


def default_data_dir() -> str:
    base = os.environ.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    return str(Path(base) / "rayhistory")


def default_cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return str(Path(base) / "rayhistory")


def _default_dashboard_dir(cache_dir: str) -> str:
    """Return the directory of the container image if it exists, else a writable one."""
    return str(MOUNTED_DASHBOARDS if MOUNTED_DASHBOARDS.is_dir() else Path(cache_dir) / "dashboards")


def _mounted_config() -> str:
    return str(MOUNTED_CONFIG) if MOUNTED_CONFIG.is_file() else ""
