"""The declaration of one setting: its flag, environment variables, parser and description."""

import dataclasses
from collections.abc import Callable
from typing import Any

COLLECTOR, SERVER, CLI = "collector", "historyserver", "rayhistory"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettingSpec:
    """The declaration of one setting."""

    name: str = ""
    default: Any = None
    description: str
    programs: frozenset[str]
    parse: Callable[[str], Any]
    variables: tuple[str, ...]
    """Environment variables besides our own."""
    aliases: tuple[str, ...]
    has_flag: bool
    metavar: str
    strict: bool
    """True if an invalid value in any of the variables is an error."""
    unused: bool
    """True for a setting that is accepted for compatibility with KubeRay and has no effect."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def flags(self) -> list[str]:
        """All spellings of the flag: ours first, and Go's with a single dash."""
        if not self.has_flag:
            return []
        names = [self.name.replace("_", "-"), *self.aliases]
        return [dashes + name for name in names for dashes in ("--", "-")]

    @property
    def own_variable(self) -> str:
        return f"RAYHISTORY_{self.name.upper()}"

    @property
    def all_variables(self) -> tuple[str, ...]:
        return (*self.variables, self.own_variable)

    @property
    def default_text(self) -> str:
        return format_value(self.default)


def format_value(value: Any) -> str:
    """Format a value as a user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, int):
        for size, unit in ((2**30, "Gi"), (2**20, "Mi")):
            if value >= size and value % size == 0:
                return f"{value // size}{unit}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def setting(
    default: Any,
    description: str,
    programs: frozenset[str],
    *,
    parse: Callable[[str], Any] = str,
    env: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    flag: bool = True,
    metavar: str = "VALUE",
    strict: bool = False,
    unused: bool = False,
) -> Any:
    """Declare a field of `Settings`."""
    spec = SettingSpec(
        description=description, programs=programs, parse=parse, variables=env, aliases=aliases, has_flag=flag,
        metavar=metavar, strict=strict, unused=unused,
    )  # fmt: skip
    return dataclasses.field(default=default, metadata={"spec": spec})
