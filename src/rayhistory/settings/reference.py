"""Generator of `docs/reference/configuration.md`: `python -m rayhistory.settings.reference`."""

import sys

from rayhistory.settings.setting_spec import CLI, COLLECTOR, SERVER, SettingSpec
from rayhistory.settings.table import setting_specs

_INTRODUCTION = """\
# Configuration

*Generated from `src/rayhistory/settings/table.py` by `make docs`; a test fails when the two differ.*

Every setting is a flag and an environment variable. If both are set, `collector` and `historyserver` use the variable,
as KubeRay does. `rayhistory` uses the flag.

- Flags can be written as in Go: `-role Head`, `--live=false`.
- Durations are written as in Go: `30s`, `5m`, `1h30m`.
- Sizes are written as in Kubernetes: `512Mi`, `2Gi`.
"""


def document() -> str:
    parts = [_INTRODUCTION]
    for program, title in (
        (COLLECTOR, "`collector`"),
        (SERVER, "`historyserver`"),
        (CLI, "`rayhistory` (settings of several commands)"),
    ):
        parts.append(f"## {title}\n\n| flag | environment | default | meaning |\n|---|---|---|---|")
        parts += [_row(spec) for spec in setting_specs() if program in spec.programs]
        parts.append("")
    return "\n".join(parts)


def _row(spec: SettingSpec) -> str:
    flags = ", ".join(f"`{flag}`" for flag in spec.flags if flag.startswith("--"))
    variables = ", ".join(f"`{variable}`" for variable in spec.all_variables)
    text = "accepted for compatibility with KubeRay; has no effect" if spec.unused else spec.description
    return f"| {flags or '–'} | {variables} | {_code(spec.default_text)} | {text} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(document())
