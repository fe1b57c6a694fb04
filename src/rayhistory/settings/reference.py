"""`docs/configuration.md`, made from the table of settings: `python -m rayhistory.settings_doc`."""

import sys

from rayhistory.settings import (
    COLLECTOR,
    SERVER,
    STORE_COMMANDS,
    Declared,
    declared,
    flag_names,
    own_variable,
    show,
)

_INTRODUCTION = """\
# Configuration

*Made from the table in `src/rayhistory/settings.py` by `make docs`; a test fails when the two differ.*

Every setting can be given as a flag or in the environment. In `collector` and `historyserver` the environment wins over
flags, as in KubeRay; in `rayhistory` flags win. Flags may be written as in Go (`-role Head`, `--x=false`). Durations
are Go's (`30s`, `5m`, `1h30m`), sizes are Kubernetes' (`512Mi`, `2Gi`).
"""


def document() -> str:
    parts = [_INTRODUCTION]
    for program, title in (
        (COLLECTOR, "`collector`"),
        (SERVER, "`historyserver`"),
        (STORE_COMMANDS, "`rayhistory` (those that its commands share)"),
    ):
        parts.append(f"## {title}\n\n| flag | environment | default | meaning |\n|---|---|---|---|")
        parts += [_row(name, default, setting) for name, default, setting in declared() if program in setting.programs]
        parts.append("")
    return "\n".join(parts)


def _row(name: str, default: object, setting: Declared) -> str:
    flags = ", ".join(f"`{flag}`" for flag in flag_names(name, setting) if flag.startswith("--"))
    variables = ", ".join(f"`{variable}`" for variable in (*setting.env, own_variable(name)))
    text = "accepted for compatibility with KubeRay, without effect" if setting.unused else setting.text
    return f"| {flags or '–'} | {variables} | {_code(show(default))} | {text} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(document())
