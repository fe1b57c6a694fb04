"""Visitors with real tokens of a real API server: TokenReview and SubjectAccessReview, with the server's own rights."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from guarded import HIDDEN, NOBODYS, bearer, guarded
from kubernetes_real import ControlPlane
from rayhistory.access import kubernetes as reviews
from recorded_sample import REF

ANY = f"{REF.url}api/profiling_enabled"
THEIRS = f"{HIDDEN.url}api/profiling_enabled"
RBAC = "rbac.authorization.k8s.io"


def account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}


def role(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def bound(role_name: str, account_name: str, namespace: str | None) -> dict[str, Any]:
    """Gives an account a role, in one namespace or in all."""
    metadata = {"name": f"{role_name}-{account_name}"} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role_name},
        "subjects": [{"kind": "ServiceAccount", "name": account_name, "namespace": "default"}],
    }


@pytest.fixture(scope="module", autouse=True)
def rights(kubernetes: ControlPlane) -> None:
    reviewing = [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]
    seeing = [{"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get"]}]
    kubernetes.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HIDDEN.namespace}},
        *(account(name) for name in ("reviewer", "powerless", "ada", "root", "nobody", "leaving")),
        role("reviews", reviewing),
        role("sees-clusters", seeing),
        bound("reviews", "reviewer", None),
        bound("sees-clusters", "ada", "default"),
        bound("sees-clusters", "leaving", "default"),
        bound("sees-clusters", "root", None),
    )


def kubeconfig_of(kubernetes: ControlPlane, name: str, path: Path) -> str:
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": {"token": kubernetes.token(name)}}]
    path.write_text(json.dumps(config))
    return str(path)


@contextmanager
def served(kubernetes: ControlPlane, directory: Path, name: str = "reviewer", **settings: Any) -> Iterator[TestClient]:
    config = kubeconfig_of(kubernetes, name, directory / "kubeconfig")
    with guarded(directory, auth="kubernetes", kubeconfigs=config, discover=False, **settings) as client:
        yield client


def test_rights_in_kubernetes_decide(kubernetes: ControlPlane, tmp_path: Path) -> None:
    ada, root, nobody = (bearer(kubernetes.token(name)) for name in ("ada", "root", "nobody"))
    with served(kubernetes, tmp_path) as client:
        assert [client.get(path, headers=ada).status_code for path in (ANY, THEIRS)] == [200, 403]
        assert [client.get(path, headers=root).status_code for path in (ANY, THEIRS)] == [200, 200]
        assert [client.get(path, headers=nobody).status_code for path in (ANY, THEIRS)] == [403, 403]
        assert "system:serviceaccount:default:nobody may not see" in client.get(ANY, headers=nobody).text
        assert [len(client.get("/clusters", headers=who).json()) for who in (ada, root, nobody)] == [2, 3, 0]
        wrong = client.get(ANY, headers=bearer(NOBODYS))
        assert (wrong.status_code, wrong.text) == (403, "Forbidden: Invalid authentication token")


def test_a_token_for_another_audience_is_refused(kubernetes: ControlPlane, tmp_path: Path) -> None:
    meant = bearer(kubernetes.token("ada", "default", "--audience=history"))
    usual = bearer(kubernetes.token("ada"))
    with served(kubernetes, tmp_path, auth_audiences=("history",)) as client:
        assert client.get(ANY, headers=meant).status_code == 200
        assert client.get(ANY, headers=usual).status_code == 403
    with served(kubernetes, tmp_path) as client:
        assert client.get(ANY, headers=meant).status_code == 403


def test_a_token_that_is_no_longer_valid_is_refused(
    kubernetes: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_KEPT", 0.0)
    token = bearer(kubernetes.token("leaving"))
    with served(kubernetes, tmp_path) as client:
        assert client.get(ANY, headers=token).status_code == 200
        kubernetes.kubectl("delete", "serviceaccount", "leaving")
        until = time.monotonic() + 60
        while client.get(ANY, headers=token).status_code == 200:  # the API server remembers tokens for some seconds
            assert time.monotonic() < until
            time.sleep(0.2)
        assert client.get(ANY, headers=token).text == "Forbidden: Invalid authentication token"


def test_a_server_without_the_right_to_review_lets_nobody_in(kubernetes: ControlPlane, tmp_path: Path) -> None:
    with served(kubernetes, tmp_path, "powerless") as client:
        answer = client.get(ANY, headers=bearer(kubernetes.token("root")))
        assert answer.status_code == 503
        assert "cannot create resource" in answer.text
