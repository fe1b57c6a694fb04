"""The rate limit of expensive calls."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayhistory.access.rate_limit import RateLimiter
from rayhistory.access.rules_file import digest
from rayhistory.errors import RateLimited
from support.recorded_sample import REF
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, write_access_file

SUMMARY = f"{REF.url}api/v0/tasks/summarize"


@pytest.mark.slow
def test_expensive_calls_are_limited_per_visitor(tmp_path: Path) -> None:
    rules = f"token ada {ALLOWED_TOKEN} default\ntoken bob {digest('another-token-of-bob')} default\n"
    access_file = write_access_file(tmp_path, rules)
    with serve_two_namespaces(tmp_path, auth="token", access_file=access_file, rate_limit=6) as client:
        statuses = [client.get(SUMMARY, headers=bearer(ALLOWED_TOKEN)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        limited = client.get(SUMMARY, headers=bearer(ALLOWED_TOKEN))
        assert int(limited.headers["retry-after"]) in range(1, 11)
        assert limited.headers["x-rayhistory-error"] == "rate_limited"
        cheap = client.get(f"{REF.url}api/profiling_enabled", headers=bearer(ALLOWED_TOKEN))
        assert cheap.status_code == 200
        assert client.get(SUMMARY, headers=bearer("another-token-of-bob")).status_code == 200


EXPENSIVE = {
    "summaries": SUMMARY,
    "timelines": f"{REF.url}api/v0/tasks/timeline",
    "logs": f"{REF.url}api/v0/logs/file?node_id=x&filename=y",
    "rows": f"{REF.url}api/history/rows/tasks",
    "metrics": f"{REF.url}api/history/metrics",
    "searches": f"{REF.url}api/history/search?q=x",
    "searches, by their other address": f"{REF.url}search.json?q=x",
    "log pages, which search in a file": f"{REF.url}logs/x/y?q=x&from=0",
    "search pages": f"{REF.url}search?q=x",
    "search pages of all sessions": "/search?q=x",
    "charts": f"{REF.url}api/history/charts/rayDefaultDashboard/panels/41",
    "PromQL": f"{REF.url}prometheus/api/v1/query?query=up",
    "points in time": f"{REF.url[:-1]}@1786526100000/api/jobs/",
    "points in time of a cluster": f"/s/{REF.namespace}/{REF.cluster}/latest%402026-11-15/api/jobs/",
}


def test_expensive_calls_of_every_kind_are_limited(tmp_path: Path) -> None:
    access_file = write_access_file(tmp_path)
    with serve_two_namespaces(tmp_path, auth="token", access_file=access_file, rate_limit=1) as client:
        assert client.get(SUMMARY, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        statuses = {
            kind: client.get(path, headers=bearer(ALLOWED_TOKEN)).status_code for kind, path in EXPENSIVE.items()
        }
    assert statuses == dict.fromkeys(EXPENSIVE, 429)


def test_points_in_time_of_one_visitor_delay_nobody_else(tmp_path: Path) -> None:
    """They are built one at a time for each visitor."""
    rules = f"token ada {ALLOWED_TOKEN} default\ntoken bob {digest('another-token-of-bob')} default\n"
    access_file = write_access_file(tmp_path, rules)
    with serve_two_namespaces(tmp_path, auth="token", access_file=access_file) as client, ThreadPoolExecutor(1) as pool:
        last_ms = client.get(f"{REF.url}api/history/overview", headers=bearer(ALLOWED_TOKEN)).json()["last_ms"]

        def open_point(token: str, seconds: int) -> int:
            path = f"{REF.url[:-1]}@{last_ms - 1000 * seconds}/api/jobs/"
            while (status := client.get(path, headers=bearer(token)).status_code) == 503:  # on a busy machine
                pass
            return status

        slots = client.app.state.resolver.builder._as_of_cache._slots  # type: ignore[attr-defined]
        assert client.portal
        with client.portal.wrap_async_context_manager(slots.acquire("ada")):
            waiting = pool.submit(open_point, ALLOWED_TOKEN, 1)
            assert {open_point("another-token-of-bob", seconds) for seconds in (2, 3, 4)} == {200}
            assert not waiting.done()
        assert waiting.result() == 200


def test_calls_are_refilled_over_time() -> None:
    now = 0.0
    limiter = RateLimiter(60, "calls", lambda: now)
    for _ in range(30):
        limiter.take("ada")
    with pytest.raises(RateLimited) as limited:
        limiter.take("ada")
    assert limited.value.retry_after == pytest.approx(1.0)
    now = 2.0
    limiter.take("ada")
    limiter.take("ada")
    with pytest.raises(RateLimited):
        limiter.take("ada")
