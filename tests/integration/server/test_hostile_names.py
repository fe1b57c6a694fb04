"""Path traversal and injection in every name that a real server accepts."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import BaseRoute

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.selection import COOKIES
from rayhistory.storage.local import LocalStore
from support import hostile_inputs
from support.hostile_inputs import CANARY, NAMES, RawClient, RawResponse
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.server_process import running_server
from support.two_namespaces import cookie_header_for, kuberay_cookies, server_routes, session_routes

LOG = "worker-1.out"
SIBLING = SessionRef.checked("default", "sample", f"{REF.session}0")
_NO_RATE_LIMIT = "import os\nos.environ['RAYHISTORY_RATE_LIMIT'] = '0'"
_OTHER_PARAMETERS = (
    "bare",
    "lines",
    "attempt_number",
    "timeout",
    "step",
    "filter_keys",
    "filter_predicates",
    "filter_values",
)
_EXPECTED_STATUSES = {200, 206, 303, 307, 400, 404, 405, 410, 416, 426}
_RAY_STATUSES = {500, 501}
"""Ray's own statuses for a missing log file or node."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a store that has secrets beside everything that may be shown."""
    directory = tmp_path_factory.mktemp("hostile")
    settings = settings_for(directory)
    store_indexed_sample(settings, {LOG: b"public\n", "deep/er/x.log": b"public\n"})
    _hide_secrets(directory)
    with running_server(directory / "store", directory / "work", at_start=_NO_RATE_LIMIT) as address:
        yield address


def _hide_secrets(directory: Path) -> None:
    layout, store = Layout(), directory / "store"
    history = store / layout.history_prefix(REF)
    logs = store / layout.logs_prefix(REF, NODE)
    paths = [
        directory / "secret.txt", store / "secret.txt", history / "secret.txt", history / NODE / "secret.txt",
        logs.with_name("logs-of-others") / "secret.txt", store / layout.logs_prefix(SIBLING, NODE) / "secret.txt",
        directory / "store-of-others" / "secret.txt",
    ]  # fmt: skip
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{CANARY}\n")
    (logs / "link.txt").symlink_to(directory / "secret.txt")
    (logs / "linked").symlink_to(directory / "store-of-others")


@pytest.fixture
def client(address: str) -> Iterator[RawClient]:
    client = RawClient(address)
    yield client
    client.close()


def route_paths(kind: str) -> list[str]:
    app = create_app(settings_for(Path(__file__).parent), LocalStore(Path(__file__).parent))
    routes: list[BaseRoute] = [*session_routes(app)] if kind == "session" else [*server_routes(app)]
    return sorted({route.path for route in routes})  # type: ignore[attr-defined]


def fill_path(path: str, value: str) -> str:
    """Replace each parameter of a path by this value."""
    return re.sub(r"{[^}]*}", lambda _: value, path)


def check(response: RawResponse, request: str, more: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    response.assert_safe(request)
    assert response.status in _EXPECTED_STATUSES | more, f"{request}: {response.status} {response.body[:300]!r}"


SESSION = route_paths("session")
NAMED = [path for path in SESSION if "{" in path]
SECRETS = (
    "../secret.txt", "../../secret.txt", "../logs-of-others/secret.txt", "link.txt", "linked/secret.txt",
    f"../../../{SIBLING.session}/{NODE}/logs/secret.txt", "deep/../../secret.txt",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_hostile_name_in_a_route_is_harmless(client: RawClient, name: str) -> None:
    """Try the routes of a session by path and by cookies."""
    assert len(NAMED) >= 9
    for path in NAMED:
        below = fill_path(path, NAMES[name])
        check(client.get(f"{REF.url}{below[1:]}"), below, _RAY_STATUSES)
        check(client.get(below or "/", Cookie=cookie_header_for(kuberay_cookies())["Cookie"]), below, _RAY_STATUSES)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_name_in_a_session_path_is_harmless(client: RawClient, name: str) -> None:
    value, (namespace, cluster, session) = NAMES[name], REF.identity
    for path in (
        f"/s/{value}/{cluster}/{session}/api/v0/tasks",
        f"/s/{namespace}/{value}/{session}/api/v0/tasks",
        f"/s/{namespace}/{cluster}/{value}/api/v0/tasks",
        f"/s/{namespace}/{cluster}/{session}@{value}/api/v0/tasks",
        f"/s/{namespace}/~rayjob/{value}/{session}/api/v0/tasks",
        f"/s/{namespace}/~{value}/x/{session}/api/v0/tasks",
        f"/s/{namespace}/{cluster}/{session}/{value}",
        f"/s/{value}",
        f"/{value}",
        f"/assets/{value}",
        f"/enter_cluster/{value}/x",
        f"/enter_cluster/{namespace}/raycluster/{value}",
        f"/enter_cluster/{namespace}/{cluster}/{value}",
    ):
        check(client.get(path), path)
        check(client.get(path, Accept="text/html"), path)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_query_parameter_is_harmless(client: RawClient, name: str) -> None:
    """Send every parameter that the server reads at once, to every route."""
    query = "&".join(
        f"{parameter}={NAMES[name]}" for parameter in (*hostile_inputs.query_parameters(), *_OTHER_PARAMETERS)
    )
    if len(query) > 30_000:
        query = "&".join(
            f"{parameter}={NAMES[name][:600]}" for parameter in (*hostile_inputs.query_parameters(), *_OTHER_PARAMETERS)
        )
    for path in SESSION:
        check(client.get(f"{REF.url}{fill_path(path, 'x')[1:]}?{query}"), path, _RAY_STATUSES)
    for path in route_paths("own"):
        check(client.get(f"{fill_path(path, 'x')}?{query}"), path)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_log_parameter_is_harmless(client: RawClient, name: str) -> None:
    """Send one hostile parameter at a time, so that each is reached."""
    valid = {"node_id": NODE, "filename": LOG, "lines": "10"}
    parameters = ("node_id", "node_ip", "filename", "task_id", "actor_id", "submission_id", "pid", "glob", "suffix",
                  "lines", "attempt_number", "interval", "download_filename", "filter_ansi_code")  # fmt: skip
    for parameter in parameters:
        query = "&".join(f"{key}={value}" for key, value in {**valid, parameter: NAMES[name]}.items())
        for path in ("logs", "logs/file", "logs/stream"):
            check(client.get(f"{REF.url}api/v0/{path}?{query}"), f"{path}?{query}", _RAY_STATUSES)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_cookie_is_harmless(client: RawClient, name: str) -> None:
    for cookie in COOKIES:
        value = cookie_header_for({**kuberay_cookies(), cookie: NAMES[name]})["Cookie"]
        for path in ("/api/v0/tasks", "/", f"/api/v0/logs/file?node_id={NODE}&filename=x"):
            response = client.get(path, Cookie=value)
            check(response, f"{path} with {value[:200]}", _RAY_STATUSES)
            renewed = [text for key, text in response.headers if key.lower() == "set-cookie"]
            assert all(re.fullmatch(r"[a-z_]+=[A-Za-z0-9._-]*; Path=/; Max-Age=600", text) for text in renewed)


@pytest.mark.parametrize("file", SECRETS)
def test_log_file_outside_of_the_log_directory_is_not_served(client: RawClient, file: str) -> None:
    """Try every spelling of the path, and a public file as a control."""
    once = quote(file, safe="")
    for spelling in (file, once, quote(once, safe=""), f"/tmp/ray/{REF.session}/logs/{file}", f"/{file}", f"./{file}"):
        for node in (NODE, f"{NODE}/..", f"{NODE}%2f..", ".", "..", f"../{NODE}"):
            response = client.get(f"{REF.url}api/v0/logs/file?node_id={node}&filename={spelling}&lines=-1")
            check(response, spelling, _RAY_STATUSES)
            assert response.status != 200, spelling
    response = client.get(f"{REF.url}api/v0/logs/file?node_id={NODE}&filename=deep/../{LOG}&lines=-1")
    assert (response.status, response.body) == (200, b"public\n")


def test_symlinks_out_of_the_store_are_not_listed(client: RawClient) -> None:
    listed: Any = client.get(f"{REF.url}api/v0/logs?node_id={NODE}&glob=**").body.decode()
    assert LOG in listed
    assert "link" not in listed


def test_name_that_is_encoded_twice_is_not_decoded_twice(client: RawClient) -> None:
    """A proxy in front of the server that decodes once sees the same name as the server."""
    namespace, cluster, session = REF.identity
    assert client.get(f"/s/{namespace}/{cluster}/{session}/api/version").status == 200
    assert client.get(f"/s/%64efault/{cluster}/{session}/api/version").status == 200
    for spelling in ("%2564efault", "%25%36%34efault"):
        assert client.get(f"/s/{spelling}/{cluster}/{session}/api/version").status == 400
    assert client.get(f"/s/{namespace}/%2573ample/{session}/api/version").status == 400


def test_download_name_cannot_inject_a_header(client: RawClient) -> None:
    """The download name is the only input that is returned in a header."""
    name = f"a%0d%0a{hostile_inputs.INJECTED}:%201%22;%20filename=%22b.exe%ff%e2%80%ae"
    response = client.get(f"{REF.url}api/v0/logs/file?node_id={NODE}&filename={LOG}&download_filename={name}")
    response.assert_safe(name)
    (disposition,) = [value for key, value in response.headers if key.lower() == "content-disposition"]
    assert disposition.isprintable()
    assert disposition.count('"') == 2
