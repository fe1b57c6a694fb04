"""Fixtures for the stores that the suite runs against; each server starts with its first test."""

import os
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("rayhistory.storage.contract_tests")

from support.collector_process import home, ray  # noqa: E402, F401
from support.store_servers.azurite import azurite as start_azurite  # noqa: E402
from support.store_servers.moto import moto as start_moto  # noqa: E402
from support.store_servers.seaweed import seaweedfs  # noqa: E402

_CLOUD_VARIABLES = ("AWS_", "S3", "GCS_", "GOOGLE_", "STORAGE_", "AZURE_", "OSS_", "ALIBABA_CLOUD_", "RAYHISTORY_")


@pytest.fixture(autouse=True)
def _without_cloud_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tests from using a real cloud or the credentials of the user."""
    for name in os.environ:
        if name.startswith(_CLOUD_VARIABLES):
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
