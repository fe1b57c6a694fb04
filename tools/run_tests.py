"""Run pytest, run failures once more alone, and fail on every test that is flaky and not listed.

    python tools/run_tests.py [--flaky tests/flaky.txt] [pytest arguments…]

A test that fails beside others and passes alone is flaky: it is reported by name, and the run fails unless the list
names the test with a reason. A test that fails twice is a failure. Lines of the list are `<test id>  # <reason>`.

Temporary files are in memory if there is room, because our programs sync nearly every file that they write.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_RERUNS = 25
"""More failures than this are not flakiness, and are not rerun."""

_TESTS_FAILED = 1  # pytest's exit status when tests ran and some failed

_MEMORY_FILES = Path("/dev/shm")  # noqa: S108
_MIN_FREE_BYTES = 8 << 30
"""A whole run needs 1.3 GB. The rest is for Ray and for memory of processes."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run_tests.py", allow_abbrev=False)
    parser.add_argument("--flaky", type=Path, default=Path("tests/flaky.txt"))
    options, pytest_arguments = parser.parse_known_args(arguments)
    try:
        listed = read_flaky_list(options.flaky)
    except ValueError as error:
        print(f"run_tests.py: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed then, too
    status, failed = run_pytest(pytest_arguments)
    if status != _TESTS_FAILED or not failed:
        return status
    if len(failed) > MAX_RERUNS:
        print(f"\n{len(failed)} tests failed, more than the {MAX_RERUNS} that are run again")
        return status
    print(f"\nrunning {len(failed)} failed tests again, one at a time", flush=True)
    flaky = [test for test in failed if run_pytest(["-p", "no:xdist", test])[0] == 0]
    return report(failed, flaky, listed)


def run_pytest(arguments: list[str]) -> tuple[int, list[str]]:
    """Return pytest's exit status and the ids of the tests that failed."""
    with tempfile.TemporaryDirectory(dir=memory_directory(), prefix="rt") as directory:
        Path(directory).chmod(0o755)  # some tests read files as another user
        cache = Path(directory) / "cache"
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        status = subprocess.run(command, env=_environment(directory), check=False).returncode
        path = cache / "v" / "cache" / "lastfailed"
        failed = sorted(json.loads(path.read_text())) if path.exists() else []
    return status, failed


def memory_directory(path: Path = _MEMORY_FILES, min_free_bytes: int = _MIN_FREE_BYTES) -> Path | None:
    """Return a directory in memory for temporary files; None if they must be on disk."""
    if "TMPDIR" in os.environ or not os.access(path, os.W_OK):
        return None
    status = os.statvfs(path)
    may_execute = not status.f_flag & os.ST_NOEXEC  # tests write programs
    free_bytes = min(status.f_bavail * status.f_frsize, _available_memory())
    return path if may_execute and free_bytes >= min_free_bytes else None


def _available_memory() -> int:
    """Return the memory that processes can use without swapping, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _environment(temporary: str) -> dict[str, str]:
    """Return an environment in which Python caches compiled modules: the tests start thousands of processes."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"TMPDIR": temporary}


def read_flaky_list(path: Path) -> dict[str, str]:
    """Return the reasons of listed tests by test id."""
    listed: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], start=1):
        if not line.strip() or line.startswith("#"):
            continue
        test, separator, reason = line.partition("  # ")
        if not separator or not reason.strip():
            raise ValueError(f"{path}:{number}: give a reason: <test id>  # <reason>")
        listed[test.strip()] = reason.strip()
    return listed


def report(failed: list[str], flaky: list[str], listed: dict[str, str]) -> int:
    """Print what failed twice and what is flaky; return the exit status of the run."""
    broken = [test for test in failed if test not in flaky]
    unlisted = [test for test in flaky if test not in listed]
    print()
    for test in broken:
        print(f"FAILED TWICE {test}")
    for test in flaky:
        print(f"FLAKY {test} ({listed.get(test, 'not listed in tests/flaky.txt')})")
    if unlisted and not broken:
        print("a flaky test fails the run: fix it, or list it in tests/flaky.txt with a reason")
    return 1 if broken or unlisted else 0


if __name__ == "__main__":
    raise SystemExit(main())
