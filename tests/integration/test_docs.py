"""Generated documentation is up to date, and documented commands work."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from nbclient import NotebookClient

from support.cli_call import Command
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.server_process import running_server
from support.stored_metrics import samples, store_object

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]
EXAMPLES = DOCS.parent / "examples"
FILES = {
    "raylet.out": b"a line\n" * 200 + b"ERROR\n",
    "job-driver-sub-ok.log": b"output\n",
    "worker-1e88e9b1f2a340e650ab6346b26e9710901cf3358eebda264c8f8191-01000000-16526.err": b"error\n",
}

RESTARTED_ACTOR = "52297792c799d4f52f1fb4a701000000"
IDS = {"TASK_ID": "c2668a65bda616c1ffffffffffffffffffffffff01000000", "ACTOR_ID": RESTARTED_ACTOR}
"""Ids of the recorded sample, for the placeholders of the examples."""

SAMPLED_MS = 1_794_770_300_000
"""A time while the sample session ran."""


def commands(document: str, program: str) -> list[str]:
    """Return the example commands of a program, with their continuation lines."""
    text = (DOCS / document).read_text().replace("\\\n", "")
    return re.findall(rf"^    ({program} .*)$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs")
    store_indexed_sample(settings_for(directory), FILES)
    tasks = samples({("ray_tasks", (("State", "FINISHED"),)): [float(n) for n in range(8)]}, SAMPLED_MS)
    store_object(Path(settings_for(directory).local_storage_dir), NODE, tasks, SAMPLED_MS, REF)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with running_server(Path(settings_for(directory).local_storage_dir), directory / "server", "--sql") as address:
        yield address


@pytest.mark.parametrize("command", [*commands("reference/api.md", "curl"), *commands("how-to/logs.md", "curl")])
def test_documented_requests_succeed(server: str, command: str, tmp_path: Path) -> None:
    here = command.replace("http://localhost:8080", server).replace("/demo/", f"/{REF.cluster}/")
    for placeholder, id_ in IDS.items():
        here = here.replace(placeholder, id_)
    assert here != command
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    argv = ["curl", "--fail-with-body", "--silent", "--show-error", *shlex.split(here)[1:]]
    done = subprocess.run(argv, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout or list(tmp_path.iterdir())


DASHBOARD = json.loads((DOCS.parent / "deploy/grafana/sessions.json").read_text())


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_grafana_panel_columns_exist_in_the_response(server: str, panel: dict[str, Any]) -> None:
    (target,) = panel["targets"]
    variables = {"server": server, "namespace": REF.namespace, "cluster": REF.cluster, "session": "latest"}
    url = re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], target["url"])
    rows = httpx.get(url, timeout=60, trust_env=False).raise_for_status().json()[target["root_selector"]]
    for row in rows:
        for column in target["columns"]:
            first, _, rest = column["selector"].partition(".")
            assert not rest or rest in row[first]
            assert first in row
    assert rows or panel["title"] == "Gaps"


@pytest.mark.parametrize(
    "command", [*commands("reference/cli.md", "rayhistory"), *commands("how-to/logs.md", "rayhistory")]
)
def test_documented_commands_succeed(
    command: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = shlex.split(
        command.replace("default/my-cluster", REF.path).replace("my-job", "sub-ok").replace("Trainer", RESTARTED_ACTOR)
    )
    done = Command(directory, monkeypatch, capfd)(*argv[1:])
    assert done.code == 0, done.err
    assert done.out or list(tmp_path.iterdir())


def test_every_command_is_documented() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("rayhistory"), "--help"], capture_output=True, text=True, check=True
    )
    listed = re.findall(r"^  ([a-z][a-z-]*) ", done.stdout, re.MULTILINE)
    assert {"tasks", "logs", "sql"} <= set(listed)
    text = "".join(
        path.read_text() for path in (DOCS / "reference/cli.md", DOCS / "how-to/archive.md", DOCS.parent / "README.md")
    )
    assert [name for name in listed if f"{name}`" not in text and f"rayhistory {name}" not in text] == []


def test_tests_named_in_documents_exist() -> None:
    """The beginning of a name may be omitted: `…_is_there_once`."""
    tests = "".join(path.read_text() for path in DOCS.parent.joinpath("tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", tests, re.MULTILINE))
    named = [name for path in PAGES for name in re.findall(r"`((?:test_|…_)[a-z0-9_]+)`", path.read_text())]
    assert named
    assert [name for name in named if not any(each.endswith(name.lstrip("…")) for each in there)] == []


def test_source_files_named_in_documents_exist() -> None:
    """In the architecture page, paths are relative to the package."""
    roots = (DOCS.parent, DOCS.parent / "src/rayhistory")
    missing = [
        f"{path.name}: {name}"
        for path in PAGES
        if path.name != "CONTRIBUTING.md"  # tests/unit/test_contributing.py
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|js|c|yaml))`", path.read_text())
        if not any((root / name).exists() for root in roots)
    ]
    assert not missing


def test_example_of_the_library_prints_failures(server: str) -> None:
    done = run_example(sys.executable, EXAMPLES / "notebook.py", server)
    assert "suicide WORKER_DIED" in done.stdout


def test_notebook_runs_in_a_jupyter_kernel(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop is running in the kernel."""
    monkeypatch.setenv("RAYHISTORY_SERVER", server)
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    notebook = nbformat.read(EXAMPLES / "failure.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    loop = "import asyncio; asyncio.get_running_loop().is_running()"
    notebook.cells.append(nbformat.v4.new_code_cell(loop))  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [displayed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert REF.session in shown[0]
    assert f'<a href="{server}{REF.url}">' in shown[1]
    assert "suicide" in shown[3]
    assert shown[-1] == "True"


def displayed(cell: Any) -> str:
    """Return what a notebook shows below a cell: HTML where the value has it."""
    found = [output["data"] for output in cell["outputs"] if "data" in output]
    return "".join(data.get("text/html") or data["text/plain"] for data in found)


def test_example_of_the_http_api_prints_failures(server: str) -> None:
    done = run_example(EXAMPLES / "failed_jobs.sh", f"{server}{REF.url}")
    assert {row["name"] for row in json.loads(done.stdout)["rows"]} >= {"suicide"}


def test_example_of_a_fold_prints_tasks() -> None:
    assert "A.inc FINISHED" in run_example(sys.executable, EXAMPLES / "fold_session.py").stdout


def test_sample_session_can_be_stored(tmp_path: Path) -> None:
    run_example(sys.executable, EXAMPLES / "store_sample.py", tmp_path)
    shown = run_example(
        Path(sys.executable).with_name("rayhistory"),
        "tasks",
        "--store",
        f"file://{tmp_path}/store",
        "--columns",
        "name",
    )
    assert "boom" in shown.stdout


def run_example(*command: str | Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done
