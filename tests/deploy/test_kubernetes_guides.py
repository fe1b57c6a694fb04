"""What the guides tell people to type works, as far as it can be typed here; the rest names things that exist."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.files import MANIFESTS, ROOT, clean_environment, documents
from deploy.guides import DOCS, GUIDES, commands, exports, of_program
from recorded.served import serving
from recorded_sample import REF, keep_sample, settings_for

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", guide.read_text())
    assert [link for link in links if "://" not in link and not (guide.parent / link).exists()] == []


def test_every_manifest_is_in_the_overview() -> None:
    text = (DOCS / "kubernetes/README.md").read_text()
    assert [name for name in MANIFESTS if f"`{name}`" not in text and "samples/aliyuncs/" not in name] == []


def test_files_and_targets_in_the_guides_exist() -> None:
    lines = [line for guide in GUIDES for line in commands(guide)]
    files = {file for line in lines for file in re.findall(r"deploy/[\w./-]+", line)}
    assert len(files) > 15
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
    targets = set(re.findall(r"^([a-z- ]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {target for names in targets for target in names.split()}
    assert {shlex.split(line)[1] for line in of_program("make")} <= known


def test_services_that_are_forwarded_have_that_port() -> None:
    services: dict[str, set[int]] = {}
    for name in MANIFESTS:
        for each in documents(name):
            if each["kind"] == "Service":
                services.setdefault(each["metadata"]["name"], set()).update(p["port"] for p in each["spec"]["ports"])
    forwarded = [re.search(r"port-forward svc/(\S+) \d+:(\d+)", line) for line in of_program("kubectl")]
    found = [(match[1], int(match[2])) for match in forwarded if match]
    assert len(found) >= 5
    assert all(port in services[name] for name, port in found)


def helm_commands() -> list[tuple[str, str]]:
    return [
        (guide.name, line)
        for guide in GUIDES
        for line in commands(guide)
        if line.startswith("helm ") and "deploy/helm" in line
    ]


@pytest.mark.parametrize(("guide", "command"), helm_commands())
def test_the_chart_takes_what_the_guides_give_it(guide: str, command: str) -> None:
    """Rendered instead of installed, by a real shell, with the guide's own variables."""
    path = DOCS / "kubernetes" / guide
    here = command.replace("helm install", "helm template").replace("helm upgrade", "helm template")
    if "--reuse-values" in here:
        here = here.replace("--reuse-values", "--set store.backend=s3 --set store.s3.bucket=my-bucket")
    environment = clean_environment() | exports(path) | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", here], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout) if each]
    assert "Deployment" in kinds


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guides")
    keep_sample(settings_for(directory))
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with serving(Path(settings_for(directory).local_storage_dir), directory / "server") as address:
        yield address


def test_what_curl_is_told_to_ask_is_answered(server: str, directory: Path) -> None:
    """One after the other, because some keep the cookies that others send."""
    asked = of_program("curl")
    assert len(asked) > 10
    for command in asked:
        here = command.replace("http://localhost:8080", server).replace("raycluster-historyserver", REF.cluster)
        argv = ["curl", "--fail-with-body", "--silent", "--show-error", "--noproxy", "*", *shlex.split(here)[1:]]
        done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert done.stdout, command


@pytest.mark.parametrize("command", of_program("rayhistory"))
def test_what_rayhistory_is_told_to_do_it_does(command: str, directory: Path) -> None:
    environment = clean_environment() | {"LOCAL_STORAGE_DIR": str(directory / "store"), "HOME": str(directory)}
    argv = [BIN / "rayhistory", *shlex.split(command)[1:]]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout
    assert "usage:" not in done.stderr, done.stderr
