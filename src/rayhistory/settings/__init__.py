"""All settings of the three programs, and how they are parsed and resolved."""

from rayhistory.settings.command_line import Parser, add_flags, default_data_dir, parse_command_line, resolve
from rayhistory.settings.parsers import (
    BACKEND_OF_SCHEME,
    parse_duration,
    parse_positive,
    parse_size,
)
from rayhistory.settings.table import CLI, COLLECTOR, SERVER, Settings, SettingSpec, format_value, setting_specs

__all__ = [
    "BACKEND_OF_SCHEME",
    "CLI",
    "COLLECTOR",
    "SERVER",
    "Parser",
    "SettingSpec",
    "Settings",
    "add_flags",
    "default_data_dir",
    "format_value",
    "parse_command_line",
    "parse_duration",
    "parse_positive",
    "parse_size",
    "resolve",
    "setting_specs",
]
