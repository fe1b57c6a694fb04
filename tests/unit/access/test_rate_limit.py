"""The rate limit of expensive calls."""

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
