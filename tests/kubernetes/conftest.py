"""Tests on a real API server, run only by `make test-kubernetes`: the server is built from source once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kubernetes_real import ControlPlane, binaries, control_plane

collect_ignore_glob = [] if os.environ.get("RAYHISTORY_TEST_KUBERNETES") else ["test_*.py"]

CRDS = Path(__file__).parent / "crds"


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real etcd and API server, with the CRDs of KubeRay, Prometheus and the Gateway API that our files use."""
    with control_plane(binaries(), tmp_path_factory.mktemp("kubernetes")) as running:
        running.kubectl("apply", "-f", str(CRDS))
        running.kubectl("wait", "--for=condition=established", "--timeout=60s", "crd", "--all")
        yield running
