"""The stores that the suite runs against. Each server is started when the first test wants it."""

import os
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("rayhistory.storage.contract")

from storeservers.azurite import azurite as start_azurite  # noqa: E402
from storeservers.moto import moto as start_moto  # noqa: E402
from storeservers.seaweed import seaweedfs  # noqa: E402

_CLOUDS = ("AWS_", "S3", "GCS_", "GOOGLE_", "STORAGE_", "AZURE_", "OSS_", "ALIBABA_CLOUD_", "RAYHISTORY_")


@pytest.fixture(autouse=True)
def _no_cloud_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test talks to a cloud, or uses the credentials of who runs it."""
    for name in os.environ:
        if name.startswith(_CLOUDS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_azurite(tmp_path_factory.mktemp("azurite")) as url:
        yield url
