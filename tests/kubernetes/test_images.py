"""The images, built from the Dockerfile without an engine, and run as Kubernetes runs them."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
import ray
from packaging.utils import canonicalize_name

from deploy.dockerfile import Image, build
from deploy.files import DEPLOY, ROOT
from deploy.pods import EVENT, NODE, SESSION, TIMEOUT_S, Program, fake_ray, program
from support.recorded_sample import REF, settings_for, store_sample

DOCKERFILE = DEPLOY / "docker/Dockerfile"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    """Both images, with the frontend of the installed Ray in place of a download."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "chroot", "setpriv", "ip", "nsenter")):
        pytest.skip("needs root, util-linux and iproute2")
    package = Path(ray.__file__).parent
    work = tmp_path_factory.mktemp("images")
    yield build(ROOT, DOCKERFILE, work / "stages", {"DASHBOARDS": "/ray"}, {"/ray": package})
    shutil.rmtree(work, ignore_errors=True)


def run_inside(running: Program, *command: str) -> str:
    """Run a command in the network of a container, which has only loopback."""
    entered = ["nsenter", f"--target={running.process.pid}", "--net", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True, timeout=60).stdout


def curl(running: Program, url: str, *more: str) -> str:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return run_inside(running, "curl", "--silent", "--fail", "--show-error", "--noproxy", "*", *more, url)
        except subprocess.CalledProcessError as error:
            assert running.process.poll() is None, running.text
            assert time.monotonic() < deadline, error.stderr
            time.sleep(0.3)


def chown(path: Path, image: Image) -> Path:
    user, group = (int(each) for each in image.user.split(":"))
    for each in (path, *path.rglob("*")):
        os.chown(each, user, group, follow_symlinks=False)
    return path


def test_collector_runs_unprivileged_without_network(images: dict[str, Image], tmp_path: Path) -> None:
    image = images["collector"]
    store = tmp_path / "store"
    store.mkdir()
    shared = Path(tempfile.mkdtemp(prefix="pod-"))
    shared.chmod(0o777)
    command = image.command(
        [*image.entrypoint, "--role=Head"],
        {"/tmp/ray": shared, "/store": chown(store, image)},
        {"RAY_CLUSTER_NAME": "a-cluster", "LOCAL_STORAGE_DIR": "/store"},
    )
    with fake_ray(shared) as raylet, program(command, {}, tmp_path / "home") as running:
        chown(shared, image)
        assert curl(running, "http://127.0.0.1:8084/readyz") == "ok\n"
        body = ("--request", "POST", "--header", "Content-Type: application/json", "--data", json.dumps([EVENT]))
        curl(running, "http://127.0.0.1:8084/v1/events", *body)
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        assert "Uid:\t1000\t1000\t1000\t1000" in status
        raylet.close()
        assert running.end() == 0
    assert (store / f"cluster-metadata/raycluster/default_a-cluster/{SESSION}").exists()
    assert list((store / f"cluster-history/raycluster/default/a-cluster/{SESSION}/{NODE}/node_events").iterdir())
    shutil.rmtree(shared)


def test_server_runs_unprivileged_without_network(images: dict[str, Image], tmp_path: Path) -> None:
    image = images["historyserver"]
    store_sample(settings_for(tmp_path))
    cache = tmp_path / "volume"
    cache.mkdir()
    mounts = {"/cache": chown(cache, image), "/store": chown(tmp_path / "store", image)}
    command = image.command(image.entrypoint, mounts, {"LOCAL_STORAGE_DIR": "/store"})
    with program(command, {}, tmp_path / "home") as running:
        assert curl(running, "http://127.0.0.1:8080/readyz") == "ok"
        assert running.wait_for_log("listed the sessions in the store")["sessions"] == 1
        tasks = json.loads(curl(running, f"http://127.0.0.1:8080{REF.url}api/v0/tasks?limit=5"))
        assert len(tasks["data"]["result"]["result"]) == 5
        page = curl(running, f"http://127.0.0.1:8080{REF.url}?bare=1")
        assert page == (Path(ray.__file__).parent / "dashboard/client/build/index.html").read_text()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(TIMEOUT_S)
    assert set(image.volumes) == {"/cache", "/tmp"}


def python_errors(image: Image, code: str, tmp_path: Path) -> str:
    command = image.command(["python", "-c", code], {}, {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    return done.stderr


def test_images_have_all_backends_and_no_unneeded_packages(images: dict[str, Image], tmp_path: Path) -> None:
    imports = "; ".join(f"import rayhistory.storage.{name}" for name in ("s3", "gcs", "azureblob", "aliyunoss_store"))
    for name in ("collector", "historyserver"):
        assert python_errors(images[name], imports, tmp_path) == ""
        assert "No module named 'pip'" in python_errors(images[name], "import pip", tmp_path)
    assert "No module named 'duckdb'" in python_errors(images["collector"], "import duckdb", tmp_path)
    assert images["collector"].size < 120 * 2**20
    assert images["historyserver"].size < 300 * 2**20


def test_package_versions_are_those_of_the_constraints(images: dict[str, Image]) -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    for name in ("collector", "historyserver"):
        (packages,) = (images[name].root / "opt/rayhistory/lib").glob("python*/site-packages")
        found = {canonicalize_name(each.name): each.version for each in distributions(path=[str(packages)])}
        assert found.pop(canonicalize_name("rayhistory")) == "0.1.0"
        assert found.items() <= versions.items()


def test_root_is_read_only(images: dict[str, Image], tmp_path: Path) -> None:
    for name in ("collector", "historyserver"):
        for directory in ("/", "/opt/rayhistory", "/dashboard", "/tmp" if name == "collector" else "/cache/.."):
            code = f"import pathlib; pathlib.Path('{directory}/x').write_text('x')"
            assert "rror" in python_errors(images[name], code, tmp_path), directory
