"""Security headers on every response."""

from pathlib import Path

from support.recorded_sample import REF
from support.two_namespaces import ALLOWED_TOKEN, HIDDEN, bearer, serve_two_namespaces, write_access_file


def test_every_response_has_security_headers(tmp_path: Path) -> None:
    allowed = bearer(ALLOWED_TOKEN)
    with serve_two_namespaces(
        tmp_path, auth="token", access_file=write_access_file(tmp_path), allowed_hosts=("testserver",)
    ) as client:
        for path, headers in {
            "/livez": {}, "/home": allowed, "/login": {}, f"{REF.url}api/profiling_enabled": allowed, "/assets/x": {},
            REF.url: allowed,
            "/api/jobs/": {}, "/clusters": {"Host": "evil"}, f"{HIDDEN.url}api/jobs/": allowed,
        }.items():  # fmt: skip
            response = client.get(path, headers=headers)
            assert response.headers["x-content-type-options"] == "nosniff", path
            assert response.headers["x-frame-options"] == "SAMEORIGIN"
            assert response.headers["referrer-policy"] == "same-origin"
            assert "frame-ancestors 'self'" in response.headers["content-security-policy"]
            assert response.headers["cache-control"] in ("private, no-cache", "no-cache", "no-store"), path
        policy = client.get(REF.url, headers=allowed).headers["content-security-policy"]
        assert "script-src" not in policy
        assert policy.startswith("default-src 'self'; style-src 'self' 'unsafe-inline'")
