"""Call of the `rayhistory` command inside the test's process."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from rayhistory.cli.main import main
from support.recorded_sample import settings_for

_CHOSEN = "rayhistory: session "


class CommandResult(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str
    """Standard error, without the line that names the session."""
    chosen: str = ""
    """The session that the command chose itself."""


class Command:
    """`rayhistory` with the store and the cache of one directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        settings = settings_for(directory)
        for name in [name for name in os.environ if name.startswith(("RAYHISTORY_", "STORAGE_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("LOCAL_STORAGE_DIR", settings.local_storage_dir)
        monkeypatch.setenv("RAYHISTORY_CACHE_DIR", settings.cache_dir)
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *argv: str) -> CommandResult:
        self._monkeypatch.setattr(sys, "argv", ["rayhistory", *argv])
        self._monkeypatch.setitem(sys.modules, "pandas", sys.modules.get("pandas"))  # main() skips its import
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        sys.stdout.flush()
        out, err = self._capfd.readouterr()
        chosen = "".join(line for line in err.splitlines(keepends=True) if line.startswith(_CHOSEN))
        code = int(end.value.code or 0)
        return CommandResult(code, out, err.replace(chosen, "", 1), chosen.removeprefix(_CHOSEN).strip())

    def good(self, *argv: str) -> str:
        done = self(*argv)
        assert done.code == 0, done.err
        return done.out

    def bad(self, *argv: str) -> str:
        """Return the one-line error of a call that fails."""
        done = self(*argv)
        assert done.code in (1, 2), done.out
        (line,) = done.err.splitlines()
        assert line.startswith("rayhistory")
        return line
