"""Entrypoints that fail without an exception: their last line names a file, a command or an argument."""

import re
from typing import NamedTuple

from rayhistory.diagnosis.tracebacks import own_output

_RAYS_LINES = re.compile(r"Running entrypoint for job |Job entrypoint command failed|[\d ,:-]+\s(?:INFO|WARNING) job_")
"""A pattern for lines that Ray writes before the output of an entrypoint."""
_SHELL = r"\S+: (?:line )?\d+: "
_PATHS = "Relative paths start at the job's working directory: check the entrypoint, and working_dir in runtime_env."
_MAX_LINES, _MAX_LINE = 100, 1_000


class EntrypointError(NamedTuple):
    exit_code: int
    line: re.Pattern[str]
    problem: str
    suggestion: str


_ERRORS = (
    EntrypointError(
        2, re.compile(r".*?: can't open file '?(.+?)'?: \[Errno 2\] .*"), "the file {} does not exist", _PATHS
    ),
    EntrypointError(
        2, re.compile(r".*?: can't open file '?(.+?)'?: \[Errno \d+\] (.*)"), "cannot open the file {}: {}", _PATHS
    ),
    EntrypointError(
        2, re.compile(r"(?:\S+: error|Error): (.+)"), "wrong arguments: {}", "Check the arguments in the entrypoint."
    ),
    EntrypointError(
        1, re.compile(r".*?: can't find '__main__' module in '?(.+?)'?"), "{} is not a Python program", _PATHS
    ),
    EntrypointError(
        127, re.compile(rf"{_SHELL}(.+): (?:command )?not found"), "the command {} was not found",
        "Check the entrypoint, and that the image of the head has this command.",
    ),
    EntrypointError(
        127, re.compile(rf"{_SHELL}(.+): No such file or directory"), "the file {} does not exist", _PATHS
    ),
    EntrypointError(
        126, re.compile(rf"{_SHELL}(.+): Permission denied"), "the file {} is not executable",
        "Start it with its interpreter, as in python script.py, or make it executable (chmod +x).",
    ),
)  # fmt: skip


def entrypoint_error(text: str, exit_code: int | None) -> EntrypointError | None:
    """Return the error that the last line of an entrypoint's output reports; None if it is not a known one."""
    line = last_output_line(text)
    for error in _ERRORS:
        if error.exit_code == exit_code and (found := error.line.fullmatch(line)):
            return error._replace(problem=error.problem.format(*found.groups()))
    return None


def last_output_line(text: str) -> str:
    """Return the last line that the entrypoint printed, without Ray's lines about the job."""
    lines = [line.strip() for line in own_output(text).splitlines()[-_MAX_LINES:]]
    return next((line for line in reversed(lines) if line and not _RAYS_LINES.match(line)), "")[:_MAX_LINE]
