"""`--auth=none`."""

from pathlib import Path

from support.two_namespaces import ALLOWED_TOKEN, HIDDEN, bearer, serve_two_namespaces


def test_without_authentication_every_session_is_visible(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path) as client:
        assert client.get("/api/authentication_mode").json() == {"authentication_mode": "disabled"}
        assert client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN), json={}).status_code == 401
        assert client.get("/login").headers["location"] == "/home"
        assert len(client.get("/clusters").json()) == 3
        assert client.get(f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/latest/api/jobs/").status_code == 200
