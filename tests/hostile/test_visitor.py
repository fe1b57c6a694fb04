"""A visitor with rights to one namespace, who sends any request."""

from pathlib import Path

from support.recorded_sample import REF
from support.two_namespaces import (
    DOTTED,
    cookie_header_for,
    fill_path,
    kuberay_cookies,
    serve_two_namespaces,
    server_routes,
    session_routes,
)


def test_no_route_leaves_its_session_with_or_without_a_slash(tmp_path: Path) -> None:
    """A redirect to a path outside of the session would be served from the session of the cookies."""
    session = DOTTED.url.rstrip("/")
    headers = {**cookie_header_for(kuberay_cookies(REF)), "Host": "evil.example"}
    with serve_two_namespaces(tmp_path) as client:
        assert client.get(f"{REF.url}api/v0/nodes", headers=headers).json()["data"]["result"]["total"] > 0
        paths = {fill_path(route.path).rstrip("/") for route in session_routes(client.app)}
        assert len(paths) > 40
        for path in sorted(paths):
            for url in (session + path, f"{session}{path}/"):
                response = client.get(url, headers=headers)
                location = response.headers.get("location", "")
                assert not location or location.startswith(f"{session}/"), (url, location)
        for path in (fill_path(route.path).rstrip("/") for route in server_routes(client.app)):
            for url in (path or "/", f"{path}/", f"/{path}/"):
                assert "evil.example" not in client.get(url, headers=headers).headers.get("location", ""), url


def test_trailing_slash_is_not_served_from_the_session_of_the_cookies(tmp_path: Path) -> None:
    headers = cookie_header_for(kuberay_cookies(REF))
    with serve_two_namespaces(tmp_path) as client:
        for path in ("api/v0/nodes/", "nodes/", "timezone/", "api/history/gaps/", "logical/actors/x/"):
            response = client.get(DOTTED.url + path, headers=headers, follow_redirects=True)
            assert response.status_code == 404, path
            assert str(response.url).endswith(DOTTED.url + path)
