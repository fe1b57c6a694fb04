"""Visitors with tokens of Kubernetes, against a double of its API; `tests/kubernetes` has the real one."""

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

from guarded import HIDDEN, NOBODYS, OURS, bearer, guarded
from kubernetes_double import KubernetesDouble, kubeconfig, running
from rayhistory.access import kubernetes as reviews
from rayhistory.errors import Misconfigured
from rayhistory.kubeapi import find_kubernetes
from rayhistory.settings import Settings
from recorded_sample import REF

ANY = f"{REF.url}api/profiling_enabled"
THEIRS = f"{HIDDEN.url}api/profiling_enabled"


@contextmanager
def served(directory: Path, double: KubernetesDouble, **settings: Any) -> Iterator[TestClient]:
    with running(double.app()) as api:
        config = kubeconfig(directory / "kubeconfig", api)
        with guarded(directory, auth="kubernetes", kubeconfigs=str(config), discover=False, **settings) as client:
            yield client


@pytest.fixture
def double() -> KubernetesDouble:
    double = KubernetesDouble()
    double.let(OURS, "ada", "default")
    double.let("token-of-the-admin", "root", "")
    return double


def test_rights_in_kubernetes_decide_what_is_shown(tmp_path: Path, double: KubernetesDouble) -> None:
    with served(tmp_path, double) as client:
        assert client.get(ANY).status_code == 401
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        refused = client.get(THEIRS, headers=bearer(OURS))
        assert (refused.status_code, refused.text) == (403, "Forbidden: ada may not see the namespace team-x")
        assert {each["namespace"] for each in client.get("/clusters", headers=bearer(OURS)).json()} == {"default"}
        assert client.get(THEIRS, headers=bearer("token-of-the-admin")).status_code == 200
        assert len(client.get("/clusters", headers=bearer("token-of-the-admin")).json()) == 3


def test_answers_of_kubernetes_are_kept_for_a_short_while(
    tmp_path: Path, double: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, double) as client:
        for _ in range(5):
            client.get(ANY, headers=bearer(OURS))
        assert double.reviews == [("token", OURS), ("ada", ""), ("ada", "default")]
        monkeypatch.setattr(reviews, "_KEPT", 0.0)
        monkeypatch.setattr(reviews, "_KEPT_REFUSAL", 0.0)
    with served(tmp_path, double) as client:
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        double.rights["ada"].clear()
        assert client.get(ANY, headers=bearer(OURS)).status_code == 403
        del double.tokens[OURS]
        assert client.get(ANY, headers=bearer(OURS)).text == "Forbidden: Invalid authentication token"


def test_who_asks_at_the_same_time_shares_the_review(tmp_path: Path, double: KubernetesDouble) -> None:
    double.delay = 0.3
    with served(tmp_path, double) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get(ANY, headers=bearer(OURS)).status_code, range(8)))
    assert answers == [200] * 8
    assert len(double.reviews) == 3


def expiring(seconds: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


def test_an_expired_token_is_refused(tmp_path: Path, double: KubernetesDouble) -> None:
    """Kubernetes says so; and no answer of it is kept beyond the token's end."""
    token = expiring(1.0)
    double.let(token, "ada", "default")
    with served(tmp_path, double) as client:
        assert client.get(ANY, headers=bearer(token)).status_code == 200
        del double.tokens[token]
        until = time.monotonic() + 20
        while client.get(ANY, headers=bearer(token)).status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert client.get(ANY, headers=bearer(token)).text == "Forbidden: Invalid authentication token"


def test_a_token_for_another_audience_is_refused(tmp_path: Path, double: KubernetesDouble) -> None:
    double.let("token-for-the-vault", "eve", "default", audiences=("vault",))
    double.let("token-for-history", "ada", "default", audiences=("history",))
    with served(tmp_path, double) as client:
        assert client.get(ANY, headers=bearer("token-for-the-vault")).status_code == 403
    with served(tmp_path, double, auth_audiences=("history",)) as client:
        assert client.get(ANY, headers=bearer("token-for-history")).status_code == 200
        for other in ("token-for-the-vault", OURS):
            assert client.get(ANY, headers=bearer(other)).status_code == 403


def test_an_api_server_that_knows_no_audiences_is_not_believed(tmp_path: Path, double: KubernetesDouble) -> None:
    double.let(OURS, "ada", "default", audiences=("history",))
    double.knows_audiences = False
    with served(tmp_path, double, auth_audiences=("history",)) as client:
        assert client.get(ANY, headers=bearer(OURS)).status_code == 403


@pytest.mark.parametrize("how", ["broken", "slow", "away"])
def test_who_cannot_be_checked_may_not_see_anything(
    tmp_path: Path, double: KubernetesDouble, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said that it cannot be checked: an empty list would say that there is nothing."""
    monkeypatch.setattr("rayhistory.kubeapi._PATIENCE", 1.0)
    double.broken, double.delay = how == "broken", 5.0 if how == "slow" else 0.0
    with served(tmp_path, double) as client:
        if how == "away":
            guard = client.app.state.guard  # type: ignore[attr-defined]
            guard.access._api._http.base_url = "http://127.0.0.1:9"
        for path in (ANY, "/clusters", "/home.json"):
            answer = client.get(path, headers=bearer(OURS))
            assert answer.status_code == 503, path
            assert "it cannot be checked now who may see this" in answer.text
            assert answer.headers["retry-after"]
        assert client.get("/livez").status_code == 200
        page = client.get(REF.url, headers=bearer(OURS) | {"Accept": "text/html"})
        assert (page.status_code, "Not now" in page.text) == (503, True)


def test_a_review_that_fails_is_asked_again(tmp_path: Path, double: KubernetesDouble) -> None:
    with served(tmp_path, double) as client:
        double.broken = True
        assert client.get(ANY, headers=bearer(OURS)).status_code == 503
        double.broken = False
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        double.broken = True
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        assert client.get(ANY, headers=bearer(NOBODYS)).status_code == 503


@pytest.mark.parametrize(
    ("text", "said"),
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
            "use a token or a client certificate",
        ),
        (
            "contexts: [{name: x, context: {cluster: y}}]\ncurrent-context: x\n"
            "clusters: [{name: y, cluster: {server: 'https://k', certificate-authority: /not/there}}]",
            "No such file",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(Misconfigured, match=said):
        find_kubernetes(Settings(kubeconfigs=str(tmp_path / "config")))


def test_without_kubernetes_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert find_kubernetes(Settings()) is None
