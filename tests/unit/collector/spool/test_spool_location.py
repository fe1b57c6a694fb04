"""The spool lies outside Ray's directory wherever another durable directory is given."""

import os
from pathlib import Path

import pytest

from rayhistory.collector.spool import spool_location
from rayhistory.collector.spool.spool_location import first_release_directory, is_durable, spool_directory
from rayhistory.settings import COLLECTOR, Settings, resolve

MOUNTS = """\
22 1 0:21 / / rw - overlay overlay rw
30 22 8:1 /data /home rw - ext4 /dev/sda1 rw
31 22 0:40 / /home/me/run rw - tmpfs tmpfs rw
32 22 8:1 / /with\\040space rw - ext4 /dev/sda1 rw
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with Ray's directory, a volume and a local disk in it."""
    for name in ("ray", "volume", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(spool_location, "VOLUME", tmp_path / "volume")
    monkeypatch.setattr(spool_location, "LOCAL_DISK", tmp_path / "disk")
    return tmp_path


def settings(places: Path, ray: str = "ray", **values: str) -> Settings:
    flags = {f"setting_{name}": value for name, value in values.items()}
    return resolve(COLLECTOR, {"setting_ray_tmp_root": str(places / ray), **flags}, {})[0]


def test_given_directory_is_used_as_in_kuberay(places: Path) -> None:
    chosen = spool_directory(settings(places, event_data_dir=str(places / "given")), "test")
    assert chosen.path == places / "given" / "test_default"


def test_volume_is_preferred_to_the_local_disk_and_that_to_rays_directory(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_location, "is_durable", lambda directory: directory.exists())
    assert spool_directory(settings(places), "test").path.is_relative_to(places / "volume")
    (places / "volume").rmdir()
    assert spool_directory(settings(places), "test").path.is_relative_to(places / "disk" / f"rayhistory-{os.geteuid()}")
    monkeypatch.setattr(spool_location, "is_durable", lambda _: False)
    assert spool_directory(settings(places), "test").path == places / "ray" / "event-data" / "test_default"
    assert first_release_directory(settings(places), "test").path == places / "ray" / "event-data" / "test_default"


def test_path_depends_on_rays_directory_and_the_cluster(places: Path) -> None:
    paths = {spool_directory(settings(places, ray), name).path for ray in ("ray", "other") for name in ("a", "b")}
    assert len(paths) == 4


def test_file_system_of_a_container_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    durable = {
        path: is_durable(Path(path), mounts) for path in ("/var/x", "/home/me", "/home/me/run/x", "/with space/x")
    }
    assert durable == {"/var/x": False, "/home/me": True, "/home/me/run/x": False, "/with space/x": True}
    assert is_durable(Path("/var/tmp"), tmp_path / "no such file")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert not is_durable(Path("/home/me"), mounts)
