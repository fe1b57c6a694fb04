"""All settings of the three programs, and how they are parsed."""

from rayhistory.settings.command_line import (
    Parser,
    add_flags,
    default_cache_dir,
    default_data_dir,
    parse_command_line,
    resolve,
)
from rayhistory.settings.parsers import (
    BACKEND_OF_SCHEME,
    parse_duration,
    parse_positive,
    parse_size,
)
from rayhistory.settings.setting_spec import CLI, COLLECTOR, SERVER, SettingSpec, format_value
from rayhistory.settings.table import Settings, setting_specs

__all__ = [
    "BACKEND_OF_SCHEME",
    "CLI",
    "COLLECTOR",
    "SERVER",
    "Parser",
    "SettingSpec",
    "Settings",
    "add_flags",
    "default_cache_dir",
    "default_data_dir",
    "format_value",
    "parse_command_line",
    "parse_duration",
    "parse_positive",
    "parse_size",
    "resolve",
    "setting_specs",
]
