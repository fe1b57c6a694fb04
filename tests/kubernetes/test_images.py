"""The images, made as the Dockerfile says but without an engine, and run as Kubernetes would run them."""

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
from deploy.pods import EVENT, NODE, PATIENCE, SESSION, Program, left_by_ray, program
from recorded_sample import REF, keep_sample, settings_for

DOCKERFILE = DEPLOY / "docker/Dockerfile"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    """Both, with the frontend of the Ray in this environment in the place of one that pip would get."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "chroot", "setpriv", "ip", "nsenter")):
        pytest.skip("making a root directory needs root, and the tools of util-linux and iproute2")
    package = Path(ray.__file__).parent
    work = tmp_path_factory.mktemp("images")
    yield build(ROOT, DOCKERFILE, work / "stages", {"DASHBOARDS": "/ray"}, {"/ray": package})
    shutil.rmtree(work, ignore_errors=True)


def inside(running: Program, *command: str) -> str:
    """What a command says in the network of a container, which has nothing but loopback."""
    entered = ["nsenter", f"--target={running.process.pid}", "--net", *command]
    return subprocess.run(entered, capture_output=True, text=True, check=True, timeout=60).stdout


def asked(running: Program, url: str, *more: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return inside(running, "curl", "--silent", "--fail", "--show-error", "--noproxy", "*", *more, url)
        except subprocess.CalledProcessError as error:
            assert running.process.poll() is None, running.text
            assert time.monotonic() < deadline, error.stderr
            time.sleep(0.3)


def owned(path: Path, image: Image) -> Path:
    user, group = (int(each) for each in image.user.split(":"))
    for each in (path, *path.rglob("*")):
        os.chown(each, user, group, follow_symlinks=False)
    return path


def test_the_collector_runs_as_nobody_without_network_and_keeps_a_session(
    images: dict[str, Image], tmp_path: Path
) -> None:
    image = images["collector"]
    store = tmp_path / "store"
    store.mkdir()
    shared = Path(tempfile.mkdtemp(prefix="pod-"))
    shared.chmod(0o777)
    command = image.command(
        [*image.entrypoint, "--role=Head"],
        {"/tmp/ray": shared, "/store": owned(store, image)},
        {"RAY_CLUSTER_NAME": "a-cluster", "LOCAL_STORAGE_DIR": "/store"},
    )
    with left_by_ray(shared) as raylet, program(command, {}, tmp_path / "home") as running:
        owned(shared, image)
        assert asked(running, "http://127.0.0.1:8084/readyz") == "ok\n"
        body = ("--request", "POST", "--header", "Content-Type: application/json", "--data", json.dumps([EVENT]))
        asked(running, "http://127.0.0.1:8084/v1/events", *body)
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        assert "Uid:\t1000\t1000\t1000\t1000" in status
        raylet.close()
        assert running.end() == 0
    assert (store / f"cluster-metadata/raycluster/default_a-cluster/{SESSION}").exists()
    assert list((store / f"cluster-history/raycluster/default/a-cluster/{SESSION}/{NODE}/node_events").iterdir())
    shutil.rmtree(shared)


def test_the_server_runs_as_nobody_without_network_and_shows_a_session(
    images: dict[str, Image], tmp_path: Path
) -> None:
    image = images["historyserver"]
    keep_sample(settings_for(tmp_path))
    cache = tmp_path / "volume"
    cache.mkdir()
    mounts = {"/cache": owned(cache, image), "/store": owned(tmp_path / "store", image)}
    command = image.command(image.entrypoint, mounts, {"LOCAL_STORAGE_DIR": "/store"})
    with program(command, {}, tmp_path / "home") as running:
        assert asked(running, "http://127.0.0.1:8080/readyz") == "ok"
        assert running.said("the store was listed")["sessions"] == 1
        tasks = json.loads(asked(running, f"http://127.0.0.1:8080{REF.url}api/v0/tasks?limit=5"))
        assert len(tasks["data"]["result"]["result"]) == 5
        page = asked(running, f"http://127.0.0.1:8080{REF.url}?bare=1")
        assert page == (Path(ray.__file__).parent / "dashboard/client/build/index.html").read_text()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(PATIENCE)
    assert set(image.volumes) == {"/cache", "/tmp"}


def imported(image: Image, code: str, tmp_path: Path) -> str:
    command = image.command(["python", "-c", code], {}, {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    return done.stderr


def test_both_can_reach_every_store_and_the_collector_has_no_more_than_it_needs(
    images: dict[str, Image], tmp_path: Path
) -> None:
    every = "; ".join(f"import rayhistory.storage.{name}" for name in ("s3", "gcs", "azureblob", "aliyunoss_store"))
    for name in ("collector", "historyserver"):
        assert imported(images[name], every, tmp_path) == ""
        assert "No module named 'pip'" in imported(images[name], "import pip", tmp_path)
    assert "No module named 'duckdb'" in imported(images["collector"], "import duckdb", tmp_path)
    assert images["collector"].size < 120 * 2**20
    assert images["historyserver"].size < 300 * 2**20


def test_every_package_has_the_version_that_the_constraints_name(images: dict[str, Image]) -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    for name in ("collector", "historyserver"):
        (packages,) = (images[name].root / "opt/rayhistory/lib").glob("python*/site-packages")
        found = {canonicalize_name(each.name): each.version for each in distributions(path=[str(packages)])}
        assert found.pop(canonicalize_name("rayhistory")) == "0.1.0"
        assert found.items() <= versions.items()


def test_nothing_can_be_written_below_the_root(images: dict[str, Image], tmp_path: Path) -> None:
    for name in ("collector", "historyserver"):
        for place in ("/", "/opt/rayhistory", "/dashboard", "/tmp" if name == "collector" else "/cache/.."):
            code = f"import pathlib; pathlib.Path('{place}/x').write_text('x')"
            assert "rror" in imported(images[name], code, tmp_path), place
