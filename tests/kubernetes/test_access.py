"""Access by TokenReview and SubjectAccessReview, with real tokens of a real API server."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.access.modes import kubernetes as reviews
from support.kubernetes_real import ControlPlane
from support.recorded_sample import REF
from support.two_namespaces import HIDDEN, UNKNOWN_TOKEN, bearer, serve_two_namespaces

VISIBLE_PATH = f"{REF.url}api/profiling_enabled"
HIDDEN_PATH = f"{HIDDEN.url}api/profiling_enabled"
RBAC = "rbac.authorization.k8s.io"


def account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}


def role(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def binding(role_name: str, account_name: str, namespace: str | None) -> dict[str, Any]:
    """Return the binding of a role to an account, in one namespace or in all."""
    metadata = {"name": f"{role_name}-{account_name}"} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role_name},
        "subjects": [{"kind": "ServiceAccount", "name": account_name, "namespace": "default"}],
    }


@pytest.fixture(scope="module", autouse=True)
def permissions(kubernetes: ControlPlane) -> None:
    review_rules = [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]
    view_rules = [{"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get"]}]
    kubernetes.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HIDDEN.namespace}},
        *(account(name) for name in ("reviewer", "powerless", "ada", "root", "nobody", "leaving")),
        role("reviews", review_rules),
        role("sees-clusters", view_rules),
        binding("reviews", "reviewer", None),
        binding("sees-clusters", "ada", "default"),
        binding("sees-clusters", "leaving", "default"),
        binding("sees-clusters", "root", None),
    )


def kubeconfig_of(kubernetes: ControlPlane, name: str, path: Path) -> str:
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": {"token": kubernetes.token(name)}}]
    path.write_text(json.dumps(config))
    return str(path)


@contextmanager
def serving(kubernetes: ControlPlane, directory: Path, name: str = "reviewer", **settings: Any) -> Iterator[TestClient]:
    config = kubeconfig_of(kubernetes, name, directory / "kubeconfig")
    with serve_two_namespaces(directory, auth="kubernetes", kubeconfigs=config, discover=False, **settings) as client:
        yield client


def test_namespaces_are_visible_by_kubernetes_permissions(kubernetes: ControlPlane, tmp_path: Path) -> None:
    ada, root, nobody = (bearer(kubernetes.token(name)) for name in ("ada", "root", "nobody"))
    with serving(kubernetes, tmp_path) as client:
        assert [client.get(path, headers=ada).status_code for path in (VISIBLE_PATH, HIDDEN_PATH)] == [200, 403]
        assert [client.get(path, headers=root).status_code for path in (VISIBLE_PATH, HIDDEN_PATH)] == [200, 200]
        assert [client.get(path, headers=nobody).status_code for path in (VISIBLE_PATH, HIDDEN_PATH)] == [403, 403]
        assert "system:serviceaccount:default:nobody may not see" in client.get(VISIBLE_PATH, headers=nobody).text
        assert [len(client.get("/clusters", headers=who).json()) for who in (ada, root, nobody)] == [2, 3, 0]
        wrong = client.get(VISIBLE_PATH, headers=bearer(UNKNOWN_TOKEN))
        assert (wrong.status_code, wrong.text) == (403, "Forbidden: Invalid authentication token")


def test_token_for_another_audience_is_refused(kubernetes: ControlPlane, tmp_path: Path) -> None:
    history_token = bearer(kubernetes.token("ada", "default", "--audience=history"))
    default_token = bearer(kubernetes.token("ada"))
    with serving(kubernetes, tmp_path, auth_audiences=("history",)) as client:
        assert client.get(VISIBLE_PATH, headers=history_token).status_code == 200
        assert client.get(VISIBLE_PATH, headers=default_token).status_code == 403
    with serving(kubernetes, tmp_path) as client:
        assert client.get(VISIBLE_PATH, headers=history_token).status_code == 403


def test_revoked_token_is_refused(kubernetes: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "_ALLOWED_TTL_S", 0.0)
    token = bearer(kubernetes.token("leaving"))
    with serving(kubernetes, tmp_path) as client:
        assert client.get(VISIBLE_PATH, headers=token).status_code == 200
        kubernetes.kubectl("delete", "serviceaccount", "leaving")
        deadline = time.monotonic() + 60
        while (
            client.get(VISIBLE_PATH, headers=token).status_code == 200
        ):  # the API server caches tokens for some seconds
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert client.get(VISIBLE_PATH, headers=token).text == "Forbidden: Invalid authentication token"


def test_server_without_review_permission_responds_503(kubernetes: ControlPlane, tmp_path: Path) -> None:
    with serving(kubernetes, tmp_path, "powerless") as client:
        response = client.get(VISIBLE_PATH, headers=bearer(kubernetes.token("root")))
        assert response.status_code == 503
        assert "cannot create resource" in response.text
