"""Runs across sessions: grouped, filtered, cut to the visitor's namespaces, as JSON, CSV and pages."""

import asyncio
import csv
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from rayhistory.runs.run_manifest import RunManifest, RunPart, publish_run_manifest
from rayhistory.runs.run_parts import FullRow, write_part
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.server.runs_api import run_listing
from rayhistory.storage.local import LocalStore
from support.generated_runs import DAY_MS, FIRST_MS, LAYOUT, generated, ref_of, serving_runs
from support.two_namespaces import ALLOWED_TOKEN, bearer, write_access_file

NIGHTS = [600_000, 610_000, 595_000, 605_000, 600_000, 900_000]


def nights() -> list[StoredSummary]:
    """A nightly job that is slower on its last night, one that fails, and one of another team."""
    runs = [
        generated(number, started_ms=FIRST_MS + number * DAY_MS, duration_ms=duration)
        for number, duration in enumerate(NIGHTS)
    ]
    failing = [
        generated(
            100 + number, name="etl", started_ms=FIRST_MS + number * DAY_MS, status=status, fingerprint=fingerprint
        )
        for number, (status, fingerprint) in enumerate([("SUCCEEDED", None), ("FAILED", "aa"), ("FAILED", "bb")])
    ]
    return [*runs, *failing, generated(200, namespace="team-x", name="secret")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving_runs(tmp_path_factory.mktemp("runs"), nights(), price=("cpu=0.5", "gpu=2")) as client:
        yield client


def runs(client: TestClient, query: str = "", **headers: str) -> dict[str, Any]:
    response = client.get(f"/api/history/runs{query}", headers=headers)
    response.raise_for_status()
    return {group["name"]: group for group in response.json()["runs"]}


def test_job_is_titled_as_its_newest_run(tmp_path: Path) -> None:
    """Numbers are replaced by # to find runs of the same job. People see the command that ran."""
    entrypoints = [
        f"/opt/env/bin/python3 /jobs/{day}/sample_job.py --day {day}" for day in ("2026-11-18", "2026-11-19")
    ]
    stored = [generated(day, owner=False, started_ms=FIRST_MS + day * DAY_MS) for day in range(2)]
    for number, entrypoint in enumerate(entrypoints):
        job = msgspec.structs.replace(stored[number].summary.jobs[0], entrypoint=entrypoint)
        summary = msgspec.structs.replace(stored[number].summary, jobs=[job])
        stored[number] = msgspec.structs.replace(stored[number], summary=summary)
    with serving_runs(tmp_path, stored) as client:
        (group,) = runs(client).values()
        title = "python3 sample_job.py --day 2026-11-19"
        assert (group["name"], group["title"], group["runs"]) == ("python# sample_job.py --day #", title, 2)
        for path in ("/runs?q=python3", f"/runs/{group['key']}"):
            page = client.get(path).text
            assert f">{title}<" in page
            assert "python#" not in page


def test_groups_have_the_documented_fields(client: TestClient) -> None:
    body = client.get("/api/history/runs").json()
    assert body["total"] == 3
    assert body["next"] is None
    group = next(group for group in body["runs"] if group["name"] == "nightly")
    expected = {"key", "namespace", "name", "kind", "last", "success_rate", "p50_ms", "p95_ms", "regression",
                "cpu_hours", "gpu_hours", "idle_share"}  # fmt: skip
    assert expected <= group.keys()
    assert {"session", "job", "status", "started_ms", "duration_ms", "headline", "url"} <= group["last"][0].keys()
    assert (group["namespace"], group["kind"], group["runs"]) == ("default", "rayjob", 6)


def test_last_runs_come_newest_first(client: TestClient) -> None:
    last = runs(client)["nightly"]["last"]
    assert [run["duration_ms"] for run in last] == NIGHTS[::-1]
    assert last[0]["url"] == f"/s/{last[0]['session']}/"


def test_slower_run_is_a_regression(client: TestClient) -> None:
    found = runs(client)
    assert found["nightly"]["regression"]["duration_ms"] == 900_000
    assert found["nightly"]["regression"]["baseline_ms"] == 600_000
    assert found["etl"]["regression"] is None


def test_failures_have_headline_rate_and_whether_they_are_new(client: TestClient) -> None:
    group = runs(client)["etl"]
    assert group["success_rate"] == pytest.approx(1 / 3, abs=1e-3)
    assert group["last_failure"]["headline"] == "ValueError in load (train.py:12)"
    assert group["last_failure"]["new"] is True
    assert group["p50_ms"] == 600_000


def test_cost_follows_prices(client: TestClient) -> None:
    assert runs(client)["etl"]["cost"] == 3 * (8 * 0.5 + 2 * 2)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?q=night", {"nightly"}),
        ("?namespace=team-x", {"secret"}),
        ("?owner=rayjob/etl", {"etl"}),
        ("?failed=1", {"etl"}),
        ("?regressed=1", {"nightly"}),
        ("?kind=entrypoint", set()),
        ("?since=1h", set()),
    ],
)
def test_filters(client: TestClient, query: str, expected: set[str]) -> None:
    assert set(runs(client, query)) == expected


def test_sort_order(client: TestClient) -> None:
    assert next(iter(runs(client, "?sort=success_rate"))) == "etl"
    assert next(iter(runs(client, "?sort=-p95_ms"))) == "nightly"
    assert list(runs(client, "?sort=name")) == ["etl", "nightly", "secret"]


@pytest.mark.parametrize("query", ["?sort=x", "?page=0", "?page=x", "?since=soon", "?owner=raycluster", "?failed=yes"])
def test_invalid_parameter_is_an_error(client: TestClient, query: str) -> None:
    response = client.get(f"/api/history/runs{query}")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert client.get(f"/runs{query}").status_code == 400


def test_group_has_runs_functions_and_fingerprints(client: TestClient) -> None:
    key = runs(client)["etl"]["key"]
    for path in (f"/api/history/runs/{key}", f"/runs/{key}.json"):
        body = client.get(path).json()
        assert [run["status"] for run in body["runs"]] == ["FAILED", "FAILED", "SUCCEEDED"]
        assert len(body["functions"]) == 8
        assert len(body["functions"][0]["runs"]) == 3
        assert [each["fingerprint"] for each in body["fingerprints"]] == ["bb", "aa"]
        assert body["fingerprints"][0]["new"]
    assert client.get("/api/history/runs/0000000000000000").status_code == 404
    assert client.get("/runs/0000000000000000").status_code == 404


def test_pages_show_groups_and_lead_to_them(client: TestClient) -> None:
    text = client.get("/runs").text
    key = runs(client)["nightly"]["key"]
    assert f'href="/runs/{key}"' in text
    assert "1.5× slower" in text
    page = client.get(f"/runs/{key}").text
    assert 'class="durations"' in page
    assert "/compare?session=default%2Fnightly-00004" in page


def test_each_run_is_compared_with_the_last_good_one_before_it(client: TestClient) -> None:
    group = client.get(f"/api/history/runs/{runs(client)['etl']['key']}").json()
    newest, failed, first = group["runs"]
    assert newest["last_good"] == failed["last_good"] == first["session"]
    assert first["last_good"] is None
    page = client.get(f"/runs/{group['group']['key']}").text
    assert page.count('title="Compare with the last successful run before it"') == 2


def test_csv_has_all_groups(client: TestClient) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get("/runs.csv?sort=name").text)))
    assert [row["name"] for row in rows] == ["etl", "nightly", "secret"]
    key = rows[0]["key"]
    assert len(list(csv.DictReader(io.StringIO(client.get(f"/runs/{key}.csv").text)))) == 3


def test_visitors_see_runs_of_their_namespaces_only(tmp_path: Path) -> None:
    access = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serving_runs(tmp_path, nights(), **access) as client:
        headers = bearer(ALLOWED_TOKEN)
        secret = "team-x"
        assert set(runs(client, **headers)) == {"nightly", "etl"}
        for path in ("/runs", "/runs.json", "/runs.csv", "/runs?namespace=default"):
            assert secret not in client.get(path, headers=headers).text, path
        assert client.get("/runs.json").status_code == 401
    with serving_runs(tmp_path, []) as client:
        key = runs(client)["secret"]["key"]
    with serving_runs(tmp_path, [], **access) as client:
        assert client.get(f"/api/history/runs/{key}", headers=headers).status_code == 404
        assert client.get(f"/runs/{key}", headers=headers).status_code == 404


def test_runs_of_removed_sessions_are_not_listed_unless_they_are_kept(tmp_path: Path) -> None:
    stored = nights()
    with serving_runs(tmp_path, stored) as client:
        assert set(runs(client)) == {"nightly", "etl", "secret"}
    for each in stored[:6]:
        (tmp_path / "store" / LAYOUT.metadata_key(ref_of(each))).unlink()
    with serving_runs(tmp_path, []) as client:
        assert set(runs(client)) == {"etl", "secret"}
    with serving_runs(tmp_path, [], keep_runs=True) as client:
        assert set(runs(client)) == {"nightly", "etl", "secret"}


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>=cmd'
    stored = generated(owner=False, status="FAILED", fingerprint=evil)
    job = msgspec.structs.replace(stored.summary.jobs[0], name=evil, entrypoint=evil, metadata={evil: evil}, id=evil)
    assert stored.summary.verdict
    verdict = msgspec.structs.replace(stored.summary.verdict, headline=evil)
    summary = msgspec.structs.replace(stored.summary, jobs=[job], verdict=verdict, ray_version=evil)
    with serving_runs(tmp_path, [msgspec.structs.replace(stored, summary=summary)]) as client:
        (group,) = runs(client).values()
        for path in ("/runs", f"/runs/{group['key']}"):
            text = client.get(path).text
            assert "<script>alert" not in text
            assert "&lt;script&gt;alert" in text
        assert f"/runs/{group['key']}" in client.get("/runs").text


def test_runs_without_names_are_grouped_by_entry_point_then_cluster(tmp_path: Path) -> None:
    stored = [generated(number, owner=False, name=f"c{number}") for number in range(3)]
    nameless = generated(9, owner=False)
    summary = msgspec.structs.replace(nameless.summary, jobs=[], state="vanished")
    with serving_runs(tmp_path, [*stored, msgspec.structs.replace(nameless, summary=summary)]) as client:
        found = runs(client)
    assert found["python train.py --epochs #"]["runs"] == 3
    assert found["nightly-00009"]["last"][0]["status"] == "FAILED"


def test_sessions_without_a_summary_are_counted(tmp_path: Path) -> None:
    stored = nights()
    with serving_runs(tmp_path, stored) as client:
        next((tmp_path / "store" / LAYOUT.run_inbox_prefix()).rglob("*.json")).unlink()
        body = client.get("/api/history/runs").json()
        assert body["unsummarized"] == 1
        assert "1 session not listed yet" in client.get("/runs").text


def test_first_page_of_a_large_store_does_not_wait_for_the_list_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_listing, "_FIRST_LISTING_S", 0.0)
    with serving_runs(tmp_path, [generated()]) as client:
        found = client.get("/api/history/runs").json()
        assert (found["total"], found["unsummarized"]) == (1, None)
        client.get("/").raise_for_status()
        assert client.get("/api/history/runs").json()["unsummarized"] == 0


@pytest.mark.slow
def test_ten_thousand_entry_points_are_listed_page_by_page(tmp_path: Path) -> None:
    """Stored as two parts, as a compaction leaves them. The sessions are gone, and their rows are kept."""
    template = generated(owner=False, functions=0)
    rows = []
    for number in range(10_000):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        job = msgspec.structs.replace(template.summary.jobs[0], entrypoint=f"python {word}.py")
        summary = msgspec.structs.replace(template.summary, cluster=f"c{number}", jobs=[job])
        rows.append(FullRow(1, msgspec.structs.replace(template, summary=summary)))
    store_parts(tmp_path / "store", rows[:5_000], rows[5_000:])
    with serving_runs(tmp_path, [], keep_runs=True) as client:
        first = client.get("/api/history/runs").json()
        assert first["total"] == 10_000
        assert len(first["runs"]) == 50
        last = client.get("/api/history/runs?page=200").json()
        assert (len(last["runs"]), last["next"]) == (50, None)
        assert len(client.get("/runs").text) < 500_000
        assert client.get("/api/history/runs?q=python+bcde.py").json()["total"] == 1


def store_parts(directory: Path, *parts: list[FullRow]) -> None:
    async def work() -> None:
        store, listed = LocalStore(directory), []
        for number, rows in enumerate(parts):
            path = directory.parent / "part"
            details = write_part(path, rows)
            listed.append(RunPart(f"2026-11-{number}", "2026-11", len(rows), path.stat().st_size, *details))
            await store.put(LAYOUT.run_part_key(listed[-1].name), path)
        await publish_run_manifest(store, LAYOUT, RunManifest(generation=1, parts=listed))

    asyncio.run(work())


def test_removed_session_cannot_be_compared(tmp_path: Path) -> None:
    kept, removed = generated(0), generated(1)
    with serving_runs(tmp_path, [kept, removed]) as client:
        (tmp_path / "store" / LAYOUT.metadata_key(ref_of(removed))).unlink()
        response = client.get(f"/api/history/compare?session={kept.summary.path}&session={removed.summary.path}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "session_not_found"


SECRETS = ("team-x", "secret-job", "secret-cluster", "secret headline", "5ec4e7", "secret_function")


def hidden_run() -> StoredSummary:
    """A run of a namespace that the visitor may not see, with words of its own in every field."""
    stored = generated(
        300,
        namespace="team-x",
        name="secret-job",
        status="FAILED",
        fingerprint="5ec4e7",
        started_ms=int(time.time() * 1000),
    )
    assert stored.summary.verdict
    verdict = msgspec.structs.replace(stored.summary.verdict, headline="secret headline")
    summary = msgspec.structs.replace(stored.summary, cluster="secret-cluster", verdict=verdict)
    function = msgspec.structs.replace(stored.details.functions[0], name="secret_function")
    return msgspec.structs.replace(
        stored, summary=summary, details=msgspec.structs.replace(stored.details, functions=[function])
    )


def test_no_view_of_runs_shows_anything_of_another_namespace(tmp_path: Path) -> None:
    """Walks over all routes of runs, comparisons and the fleet, and the metrics."""
    hidden, shown = hidden_run(), generated(1, started_ms=int(time.time() * 1000))
    with serving_runs(tmp_path, [hidden, shown]) as client:
        keys = {group["namespace"]: group["key"] for group in runs(client).values()}
        assert all(secret in client.get(f"/runs/{keys['team-x']}").text for secret in SECRETS)
    compared = f"?session={shown.summary.path}&session={hidden.summary.path}"
    access = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serving_runs(tmp_path, [], **access) as client:
        paths = [route.path for route in client.app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]
        of_runs = [path for path in paths if re.match(r"/(api/history/)?(runs|fleet|compare)", path)]
        assert len(of_runs) >= 15
        for path in [*of_runs, "/metrics"]:
            urls = [path.replace("{key}", keys["team-x"]) + query for query in ("", "?namespace=team-x", compared)]
            for url, headers in [*((url, bearer(ALLOWED_TOKEN)) for url in urls), (urls[0], {})]:
                response = client.get(url, headers=headers)
                shows = [secret for secret in SECRETS if secret in response.text and secret not in url]
                assert not shows, f"{url} shows {shows}"
                assert response.status_code in (200, 400, 401, 403, 404), url
