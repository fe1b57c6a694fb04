"""The kubectl and helm commands of the guides on a real API server, except those that need running pods."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.files import HELM, ROOT, clean_environment
from deploy.guides import GUIDES, OVERVIEW, commands, exports
from support.kubernetes_real import ControlPlane

RUN = re.compile(r"kubectl|deploy/eks/pod-identity\.sh")
NEED_PODS = re.compile(r"kubectl (-n \S+ )?(wait|port-forward|logs|exec|describe|run) ")
KINDS = "rayclusters,rayjobs,rayservices,deployments,cronjobs,jobs,configmaps,secrets,serviceaccounts,networkpolicies"
FOLLOWED = [
    "kind-minio.md",
    "gke-gcs.md",
    "eks-s3.md",
    "aks-azureblob.md",
    "ack-oss.md",
    "set_up_historyserver.md",
    "operator-injection.md",
    "production.md",
]


@pytest.mark.parametrize("guide", [path for path in GUIDES if path.name in FOLLOWED], ids=lambda path: path.name)
def test_commands_of_the_guide_succeed(kubernetes: ControlPlane, guide: Path, tmp_path: Path) -> None:
    lines = [line for line in commands(guide) if RUN.search(line) and not NEED_PODS.search(line)]
    assert lines
    environment = clean_environment() | exports(guide) | {
        "KUBECONFIG": str(kubernetes.kubeconfig),
        "PATH": f"{tmp_path}:{kubernetes.programs}:{os.environ['PATH']}",
        "CLIENT_ID": "00000000-0000-0000-0000-000000000000",
        "COLLECTOR_ID": "00000000-0000-0000-0000-000000000001",
        "RETENTION_ID": "00000000-0000-0000-0000-000000000002",
    }  # fmt: skip
    _write_files(tmp_path)
    namespace = environment.get("HISTORY_NAMESPACE", "default")
    kubernetes.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    try:
        for line in lines:
            command = ["bash", "-ec", f"set -o pipefail; {line}"]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
    finally:
        for used in {"default", namespace, environment.get("NAMESPACE", "default")}:
            kubernetes.kubectl("-n", used, "delete", KINDS, "--all")
        _clean_up(kubernetes)


def test_production_page_installs_upgrades_and_rolls_back(kubernetes: ControlPlane, tmp_path: Path) -> None:
    """All commands that need no pods, with those of helm; Secrets first, as the page says."""
    page = OVERVIEW.with_name("production.md")
    _write_files(tmp_path)
    needing_none = [line for line in commands(page) if not NEED_PODS.search(line)]
    lines = sorted(needing_none, key=lambda line: line.startswith("helm"))
    assert any("helm rollback" in line for line in lines)
    environment = clean_environment() | {
        "KUBECONFIG": str(kubernetes.kubeconfig),
        "PATH": f"{kubernetes.programs}:{HELM.parent}:{os.environ['PATH']}",
        "HELM_CACHE_HOME": str(tmp_path / "helm"),
    }
    namespace = exports(page)["HISTORY_NAMESPACE"]
    kubernetes.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    try:
        done = subprocess.run(
            ["bash", "-ec", "\n".join(["set -x", *lines])], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=180, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "deployment.apps/history" in kubernetes.kubectl("get", "deployments", "-o", "name", "-n", namespace)
    finally:
        kubernetes.kubectl("-n", namespace, "delete", KINDS, "--all")


def _write_files(directory: Path) -> None:
    """Write the files that the guides tell the reader to write."""
    (directory / "deploy").symlink_to(ROOT / "deploy")
    (directory / "access").write_text("user ada@example.com team-a\n")
    (directory / "tokens").write_text("")
    (directory / "oauth2.env").write_text("OAUTH2_PROXY_CLIENT_ID=id\nOAUTH2_PROXY_CLIENT_SECRET=secret\n")
    aws = directory / "aws"
    aws.write_text('#!/bin/sh\n[ "$2" != get-role ] && echo None\n')  # an account without roles and associations
    aws.chmod(0o755)


def _clean_up(kubernetes: ControlPlane) -> None:
    kubernetes.kubectl("delete", "service", "historyserver", "--ignore-not-found")
    kubernetes.kubectl("delete", "clusterrole", "raycluster-reader", "--ignore-not-found")
    kubernetes.kubectl("delete", "clusterrolebinding", "historyserver", "--ignore-not-found")
