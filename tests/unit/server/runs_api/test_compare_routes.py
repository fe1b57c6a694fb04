"""Sessions side by side: as API, page and command, for those who may see all of them."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.cli.inspect.compare import describe
from rayhistory.runs.comparison import SessionComparison
from support.generated_runs import generated, serving_runs
from support.two_namespaces import ALLOWED_TOKEN, bearer, write_access_file

GOOD, BAD = generated(0), generated(1, status="FAILED", fingerprint="aa", duration_ms=1_200_000, ray_version="2.61.0")
HIDDEN = generated(2, namespace="team-x", name="secret")
EVIL = generated(3, status="FAILED", fingerprint="<script>", ray_version="<script>alert(1)</script>")


def query(*names: str, **more: str) -> str:
    return urlencode([("session", name) for name in names] + list(more.items()))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving_runs(tmp_path_factory.mktemp("compare"), [GOOD, BAD, HIDDEN, EVIL]) as client:
        yield client


PAIR = query(GOOD.summary.path, BAD.summary.path)


def test_comparison_has_the_documented_fields(client: TestClient) -> None:
    body = client.get(f"/api/history/compare?{PAIR}").json()
    assert body == client.get(f"/compare.json?{PAIR}").json()
    assert {"sessions", "environment", "functions", "fingerprints"} <= body.keys()
    assert [each["session"] for each in body["sessions"]] == [GOOD.summary.path, BAD.summary.path]
    first = body["functions"][0]
    assert {"count", "failed", "p50_ms", "p95_ms", "waiting_ms"} <= first["sessions"][0].keys()
    assert body["fingerprints"][0]["new"]


def test_page_shows_only_differences_until_asked_for_everything(client: TestClient) -> None:
    page = client.get(f"/compare?{PAIR}").text
    assert "2.61.0" in page
    assert "Entry points" not in page
    assert "Entry points" in client.get(f"/compare?{PAIR}&all=1").text


def test_a_and_b_are_aliases(client: TestClient) -> None:
    aliases = urlencode({"a": GOOD.summary.path, "b": f"/s/{BAD.summary.path}/"})
    assert client.get(f"/compare.json?{aliases}").json() == client.get(f"/compare.json?{PAIR}").json()


def test_cluster_and_latest_name_a_session(client: TestClient) -> None:
    latest = query("default/nightly-00000/latest", "default/nightly-00001/latest")
    assert client.get(f"/compare.json?{latest}").json() == client.get(f"/compare.json?{PAIR}").json()


@pytest.mark.parametrize(
    ("names", "status"),
    [
        ([], 400),
        ([GOOD.summary.path], 400),
        ([GOOD.summary.path, "x"], 400),
        ([GOOD.summary.path, f"{BAD.summary.path}@1"], 400),
        ([GOOD.summary.path, "default/nope/session_2026-11-01_00-00-00_000000_9"], 404),
        ([f"default/c{number}/latest" for number in range(11)], 400),
    ],
)
def test_wrong_calls_are_errors(client: TestClient, names: list[str], status: int) -> None:
    assert client.get(f"/api/history/compare?{query(*names)}").status_code == status
    assert client.get(f"/compare?{query(*names)}").status_code == status


@pytest.mark.parametrize(("names", "selected"), [([], "0 sessions"), ([GOOD.summary.path], "1 session")])
def test_page_without_enough_sessions_says_what_to_do(client: TestClient, names: list[str], selected: str) -> None:
    page = client.get(f"/compare?{query(*names)}").text
    assert '<h1 class="wrap">Select sessions to compare</h1>' in page
    assert f"{selected} selected, but 2 to 10 can be compared." in page
    assert "Tick them in the list of sessions" in page
    assert "session=" not in page


def test_session_of_another_namespace_is_denied_before_it_is_looked_up(tmp_path: Path) -> None:
    access = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serving_runs(tmp_path, [GOOD, HIDDEN], **access) as client:
        for name in (HIDDEN.summary.path, "team-x/nope/latest"):
            for path in ("/api/history/compare", "/compare.json", "/compare"):
                url = f"{path}?{query(GOOD.summary.path, name)}"
                assert client.get(url, headers=bearer(ALLOWED_TOKEN)).status_code == 403


def test_hostile_values_are_escaped(client: TestClient) -> None:
    page = client.get(f"/compare?{query(GOOD.summary.path, EVIL.summary.path)}").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_command_prints_what_differs(client: TestClient) -> None:
    body = client.get(f"/compare.json?{PAIR}").content
    lines = "\n".join(describe(msgspec.json.decode(body, type=SessionComparison)))
    assert "2.61.0" in lines
    assert "20m" in lines
    assert "2.00x" in lines
    assert "Entry points" not in lines
