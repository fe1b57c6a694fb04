"""The commands of the README exist and work."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

from recorded.recorder import Recording

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def commands() -> list[str]:
    lines = (ROOT / "README.md").read_text().splitlines()
    return [line.strip().partition("#")[0].strip() for line in lines if line.startswith("    ") and "──" not in line]


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {command.split()[1] for command in commands() if command.startswith("make ")}
    assert {"run", "test", "check", "help"} <= named <= targets


def test_programs_and_flags_in_the_readme_exist() -> None:
    for command in commands():
        words = command.partition(" -- ")[0].split()
        if words[0] in ("rayhistory", "collector", "historyserver"):
            program, rest = words[0], words[1:]
            command_line: list[str | Path] = (
                [BIN / program, *rest[:1], "--help"] if program == "rayhistory" else [BIN / program, "--help"]
            )
            done = subprocess.run(command_line, capture_output=True, text=True, check=True)
            for flag in (word for word in rest if word.startswith("--") and len(word) > 2):
                assert flag in done.stdout


def test_readme_is_short_and_its_files_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len([link for link in links if link.endswith(".png")]) == 2
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_table_of_versions_is_that_of_the_tests_and_the_package() -> None:
    readme, package, makefile = ((ROOT / name).read_text() for name in ("README.md", "pyproject.toml", "Makefile"))
    rows = dict(re.findall(r"^\| (Ray|KubeRay|Python|Stores) \| (.*) \|$", readme, re.MULTILINE))
    (tested,) = re.findall(r"OTHER_RAYS := \$\(foreach ray,([0-9. ]+),", makefile)
    (required,) = re.findall(r"ray\[default\]~=([0-9.]+)", package)
    assert re.findall(r"\d\.\d+", rows["Ray"]) == [required, *tested.split()]
    assert re.findall(r"v\d\.\d+", rows["KubeRay"]) == ["v1.6", "v1.7"]
    assert f'requires-python = ">={rows["Python"]}"' in package
    backends = set(re.findall(r'^\w+ = "rayhistory\.storage\.(\w+):', package, re.MULTILINE))
    assert len(rows["Stores"].split(", ")) == len(backends)


def test_make_run_installs_only_what_looking_needs() -> None:
    """The tools of developers are an extra of their own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--dry-run", "--always-make", "run", "PORT=9000"]
    planned = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"pip install .* -e '\.(\S+)'", planned) == ["[ray]"]
    assert "apt-get" not in planned
    assert "rayhistory demo --port 9000" in planned


def test_second_make_run_serves_the_stored_session(recorded: Recording) -> None:
    """`make run` is `rayhistory demo`: with a session in the store it starts no Ray, and prints the URL."""
    environment = os.environ | {"LOCAL_STORAGE_DIR": str(recorded.store), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [BIN / "rayhistory", "demo", "--port", "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        output = ""
        while "Ctrl-C" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        address = re.search(r"http://127\.0\.0\.1:\d+", output)
        assert address
        assert recorded.ref.url in output
        deadline = time.monotonic() + 30
        while True:
            try:
                page = httpx.get(f"{address[0]}/", trust_env=False)
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
        assert recorded.ref.cluster in page.text
        jobs = httpx.get(f"{address[0]}/s/{recorded.ref.namespace}/{recorded.ref.cluster}/latest/api/jobs/", timeout=60)
        assert jobs.status_code == 200
    finally:
        process.terminate()
        process.wait()
