"""`--auth=kubernetes` against a double of the Kubernetes API; `tests/kubernetes` uses a real one."""

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.access.modes import kubernetes
from rayhistory.errors import InvalidSetting
from rayhistory.kubernetes_api import open_kubernetes
from rayhistory.settings import Settings
from support.kubernetes_double import KubernetesDouble, kubeconfig, run_app
from support.recorded_sample import REF
from support.two_namespaces import ALLOWED_TOKEN, HIDDEN, UNKNOWN_TOKEN, bearer, serve_two_namespaces

PROFILING = f"{REF.url}api/profiling_enabled"
HIDDEN_PROFILING = f"{HIDDEN.url}api/profiling_enabled"


@contextmanager
def serve_with_kubernetes(directory: Path, double: KubernetesDouble, **settings: Any) -> Iterator[TestClient]:
    with run_app(double.app()) as api:
        config = kubeconfig(directory / "kubeconfig", api)
        with serve_two_namespaces(
            directory, auth="kubernetes", kubeconfigs=str(config), discover=False, **settings
        ) as client:
            yield client


@pytest.fixture
def double() -> KubernetesDouble:
    double = KubernetesDouble()
    double.grant(ALLOWED_TOKEN, "ada", "default")
    double.grant("token-of-the-admin", "root", "")
    return double


def test_kubernetes_rights_decide_which_namespaces_are_visible(tmp_path: Path, double: KubernetesDouble) -> None:
    with serve_with_kubernetes(tmp_path, double) as client:
        assert client.get(PROFILING).status_code == 401
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        denied = client.get(HIDDEN_PROFILING, headers=bearer(ALLOWED_TOKEN))
        assert (denied.status_code, denied.text) == (403, "Forbidden: ada may not see the namespace team-x")
        assert {row["namespace"] for row in client.get("/clusters", headers=bearer(ALLOWED_TOKEN)).json()} == {
            "default"
        }
        assert client.get(HIDDEN_PROFILING, headers=bearer("token-of-the-admin")).status_code == 200
        assert len(client.get("/clusters", headers=bearer("token-of-the-admin")).json()) == 3


def test_reviews_are_cached_for_a_short_time(
    tmp_path: Path, double: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_with_kubernetes(tmp_path, double) as client:
        for _ in range(5):
            client.get(PROFILING, headers=bearer(ALLOWED_TOKEN))
        assert double.reviews == [("token", ALLOWED_TOKEN), ("ada", ""), ("ada", "default")]
        monkeypatch.setattr(kubernetes, "_ALLOWED_TTL_S", 0.0)
        monkeypatch.setattr(kubernetes, "_DENIED_TTL_S", 0.0)
    with serve_with_kubernetes(tmp_path, double) as client:
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        double.rights["ada"].clear()
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 403
        del double.tokens[ALLOWED_TOKEN]
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).text == "Forbidden: Invalid authentication token"


@pytest.mark.slow
def test_concurrent_requests_share_one_review(tmp_path: Path, double: KubernetesDouble) -> None:
    double.delay = 0.3
    with serve_with_kubernetes(tmp_path, double) as client, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code, range(8)))
    assert statuses == [200] * 8
    assert len(double.reviews) == 3


def expiring_token(seconds: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


def test_expiry_of_a_token_is_read_from_its_claims() -> None:
    assert 50 < kubernetes.seconds_until_expiry(expiring_token(60)) <= 60
    for token in ("opaque", "head.!!!.signature", "head.e30.signature"):
        assert kubernetes.seconds_until_expiry(token) == kubernetes._ALLOWED_TTL_S


def test_review_without_a_user_name_is_refused(tmp_path: Path, double: KubernetesDouble) -> None:
    double.grant("token-of-nobody", "", "")
    with serve_with_kubernetes(tmp_path, double) as client:
        assert client.get(PROFILING, headers=bearer("token-of-nobody")).status_code == 403


@pytest.mark.slow
def test_expired_token_is_refused(tmp_path: Path, double: KubernetesDouble) -> None:
    """A review is not cached beyond the expiry of its token."""
    token = expiring_token(1.0)
    double.grant(token, "ada", "default")
    with serve_with_kubernetes(tmp_path, double) as client:
        assert client.get(PROFILING, headers=bearer(token)).status_code == 200
        del double.tokens[token]
        deadline = time.monotonic() + 20
        while client.get(PROFILING, headers=bearer(token)).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert client.get(PROFILING, headers=bearer(token)).text == "Forbidden: Invalid authentication token"


def test_token_for_another_audience_is_refused(tmp_path: Path, double: KubernetesDouble) -> None:
    double.grant("token-for-the-vault", "eve", "default", audiences=("vault",))
    double.grant("token-for-history", "ada", "default", audiences=("history",))
    with serve_with_kubernetes(tmp_path, double) as client:
        assert client.get(PROFILING, headers=bearer("token-for-the-vault")).status_code == 403
    with serve_with_kubernetes(tmp_path, double, auth_audiences=("history",)) as client:
        assert client.get(PROFILING, headers=bearer("token-for-history")).status_code == 200
        for token in ("token-for-the-vault", ALLOWED_TOKEN):
            assert client.get(PROFILING, headers=bearer(token)).status_code == 403


def test_review_without_audiences_is_not_trusted(tmp_path: Path, double: KubernetesDouble) -> None:
    double.grant(ALLOWED_TOKEN, "ada", "default", audiences=("history",))
    double.supports_audiences = False
    with serve_with_kubernetes(tmp_path, double, auth_audiences=("history",)) as client:
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["error", "timeout", "unreachable"])
def test_failed_review_denies_access_with_503(
    tmp_path: Path, double: KubernetesDouble, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists fail too: an empty list would say that there are no sessions."""
    monkeypatch.setattr("rayhistory.kubernetes_api._TIMEOUT", 1.0)
    double.broken, double.delay = failure == "error", 5.0 if failure == "timeout" else 0.0
    with serve_with_kubernetes(tmp_path, double) as client:
        if failure == "unreachable":
            admission = client.app.state.admission  # type: ignore[attr-defined]
            admission.access._api._http.base_url = "http://127.0.0.1:9"
        for path in (PROFILING, "/clusters", "/home.json"):
            response = client.get(path, headers=bearer(ALLOWED_TOKEN))
            assert response.status_code == 503, path
            assert response.headers["x-rayhistory-error"] == "access_check_failed"
            assert "cannot check access now" in response.text
            assert response.headers["retry-after"]
        assert client.get("/livez").status_code == 200
        page = client.get(REF.url, headers=bearer(ALLOWED_TOKEN) | {"Accept": "text/html"})
        assert (page.status_code, "Temporarily unavailable" in page.text) == (503, True)


def test_failed_review_is_not_cached(tmp_path: Path, double: KubernetesDouble) -> None:
    with serve_with_kubernetes(tmp_path, double) as client:
        double.broken = True
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 503
        double.broken = False
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        double.broken = True
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        assert client.get(PROFILING, headers=bearer(UNKNOWN_TOKEN)).status_code == 503


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a kubeconfig"),
        ("a: [", "not a kubeconfig"),
        ("[1]", "not a kubeconfig"),
        ('"text"', "not a kubeconfig"),
        ("[[1, 2]]", "not a kubeconfig"),
        ('{"contexts": ["x"], "current-context": "x"}', "not a kubeconfig"),
        ("clusters: []", "is missing"),
        ("contexts: [{name: x, context: {cluster: y}}]\ncurrent-context: x\nclusters: []", "is missing"),
        (
            "contexts: [{name: x, context: {cluster: y, user: z}}]\ncurrent-context: x\n"
            "clusters: [{name: y, cluster: {server: 'https://k'}}]\nusers: [{name: z, user: {exec: {command: aws}}}]",
            "exec and auth-provider are not supported",
        ),
        (
            "contexts: [{name: x, context: {cluster: y}}]\ncurrent-context: x\n"
            "clusters: [{name: y, cluster: {server: 'https://k', certificate-authority: /not/there}}]",
            "No such file",
        ),
    ],
)
def test_invalid_kubeconfig_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InvalidSetting, match=message):
        open_kubernetes(Settings(kubeconfigs=str(tmp_path / "config")))


def test_outside_of_kubernetes_there_is_no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert open_kubernetes(Settings()) is None
