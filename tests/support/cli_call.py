"""The `rayhistory` command, called inside the test's process: what it printed, and how it ended."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from rayhistory.cli.main import main
from recorded_sample import settings_for


class Done(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str


class Command:
    """On the store and the cache of one directory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        settings = settings_for(directory)
        for name in [name for name in os.environ if name.startswith(("RAYHISTORY_", "STORAGE_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("LOCAL_STORAGE_DIR", settings.local_storage_dir)
        monkeypatch.setenv("RAYHISTORY_CACHE_DIR", settings.cache_dir)
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *argv: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["rayhistory", *argv])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        sys.stdout.flush()
        out, err = self._capfd.readouterr()
        return Done(int(end.value.code or 0), out, err)

    def good(self, *argv: str) -> str:
        done = self(*argv)
        assert done.code == 0, done.err
        return done.out

    def bad(self, *argv: str) -> str:
        """The one line that is said when something cannot be done."""
        done = self(*argv)
        assert done.code in (1, 2), done.out
        (line,) = done.err.splitlines()
        assert line.startswith("rayhistory")
        return line
