"""Names that want out of their place, in every place where a real server takes a name: none of them leads anywhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import BaseRoute

import hostile
from guarded import as_cookies, below_a_session, chosen, own_routes
from hostile import CANARY, NAMES, Asker, Heard
from rayhistory.layout import Layout, SessionRef
from rayhistory.server.app import create_app
from rayhistory.server.resolve import COOKIES
from rayhistory.storage.local import LocalStore
from recorded.served import serving
from recorded_sample import NODE, REF, keep_sample, settings_for

LOG = "worker-1.out"
SIBLING = SessionRef.checked("default", "sample", f"{REF.session}0")
_NO_LIMIT = "import os\nos.environ['RAYHISTORY_EXPENSIVE_CALLS'] = '0'"
_MORE = ("bare", "lines", "attempt_number", "timeout", "step", "filter_keys", "filter_predicates", "filter_values")
_ANSWERS = {200, 206, 303, 307, 400, 404, 410, 416, 426}
_AS_RAY = {500, 501}
"""Ray answers so when a log file or a node is not there; the message says so."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose disk and store have secrets beside everything that it may show."""
    directory = tmp_path_factory.mktemp("hostile")
    settings = settings_for(directory)
    keep_sample(settings, {LOG: b"may be read\n", "deep/er/x.log": b"may be read\n"})
    _hide_secrets(directory)
    with serving(directory / "store", directory / "work", at_start=_NO_LIMIT) as address:
        yield address


def _hide_secrets(directory: Path) -> None:
    layout, store = Layout(), directory / "store"
    history = store / layout.history_prefix(REF)
    logs = store / layout.logs_prefix(REF, NODE)
    places = [
        directory / "secret.txt", store / "secret.txt", history / "secret.txt", history / NODE / "secret.txt",
        logs.with_name("logs-of-others") / "secret.txt", store / layout.logs_prefix(SIBLING, NODE) / "secret.txt",
        directory / "store-of-others" / "secret.txt",
    ]  # fmt: skip
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{CANARY}\n")
    (logs / "link.txt").symlink_to(directory / "secret.txt")
    (logs / "linked").symlink_to(directory / "store-of-others")


@pytest.fixture
def asker(address: str) -> Iterator[Asker]:
    asker = Asker(address)
    yield asker
    asker.close()


def routes(kind: str) -> list[str]:
    app = create_app(settings_for(Path(__file__).parent), LocalStore(Path(__file__).parent))
    found: list[BaseRoute] = [*below_a_session(app)] if kind == "session" else [*own_routes(app)]
    return sorted({route.path for route in found})  # type: ignore[attr-defined]


def filled(path: str, value: str) -> str:
    """The path with this in the place of each parameter."""
    return re.sub(r"{[^}]*}", lambda _: value, path)


def check(heard: Heard, asked: str, more: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    heard.is_safe(asked)
    assert heard.status in _ANSWERS | more, f"{asked}: {heard.status} {heard.body[:300]!r}"


SESSION = routes("session")
NAMED = [path for path in SESSION if "{" in path]
SECRETS = (
    "../secret.txt", "../../secret.txt", "../logs-of-others/secret.txt", "link.txt", "linked/secret.txt",
    f"../../../{SIBLING.session}/{NODE}/logs/secret.txt", "deep/../../secret.txt",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_name_in_a_path_leads_anywhere(asker: Asker, name: str) -> None:
    """By the address of a session and by cookies; what follows a name in the path is there too."""
    assert len(NAMED) >= 9
    for path in NAMED:
        below = filled(path, NAMES[name])
        check(asker.get(f"{REF.url}{below[1:]}"), below, _AS_RAY)
        check(asker.get(below or "/", Cookie=as_cookies(chosen())["Cookie"]), below, _AS_RAY)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_in_an_address_leads_anywhere(asker: Asker, name: str) -> None:
    value, (namespace, cluster, session) = NAMES[name], REF.identity
    for asked in (
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
        check(asker.get(asked), asked)
        check(asker.get(asked, Accept="text/html"), asked)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_of_any_route_leads_anywhere(asker: Asker, name: str) -> None:
    """All that the server ever looks at in a query, at once, on every route that there is."""
    query = "&".join(f"{parameter}={NAMES[name]}" for parameter in (*hostile.asked_parameters(), *_MORE))
    if len(query) > 30_000:
        query = "&".join(f"{parameter}={NAMES[name][:600]}" for parameter in (*hostile.asked_parameters(), *_MORE))
    for path in SESSION:
        check(asker.get(f"{REF.url}{filled(path, 'x')[1:]}?{query}"), path, _AS_RAY)
    for path in routes("own"):
        check(asker.get(f"{filled(path, 'x')}?{query}"), path)


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_of_the_logs_leads_anywhere(asker: Asker, name: str) -> None:
    """One by one, with a good node and a good file, so that each of them is looked at."""
    good = {"node_id": NODE, "filename": LOG, "lines": "10"}
    parameters = ("node_id", "node_ip", "filename", "task_id", "actor_id", "submission_id", "pid", "glob", "suffix",
                  "lines", "attempt_number", "interval", "download_filename", "filter_ansi_code")  # fmt: skip
    for parameter in parameters:
        asked = "&".join(f"{key}={value}" for key, value in {**good, parameter: NAMES[name]}.items())
        for path in ("logs", "logs/file", "logs/stream"):
            check(asker.get(f"{REF.url}api/v0/{path}?{asked}"), f"{path}?{asked}", _AS_RAY)


@pytest.mark.parametrize("name", NAMES)
def test_no_cookie_leads_anywhere(asker: Asker, name: str) -> None:
    for cookie in COOKIES:
        value = as_cookies({**chosen(), cookie: NAMES[name]})["Cookie"]
        for path in ("/api/v0/tasks", "/", f"/api/v0/logs/file?node_id={NODE}&filename=x"):
            heard = asker.get(path, Cookie=value)
            check(heard, f"{path} with {value[:200]}", _AS_RAY)
            renewed = [text for key, text in heard.headers if key.lower() == "set-cookie"]
            assert all(re.fullmatch(r"[a-z_]+=[A-Za-z0-9._-]*; Path=/; Max-Age=600", text) for text in renewed)


@pytest.mark.parametrize("file", SECRETS)
def test_a_file_is_read_only_from_its_own_place(asker: Asker, file: str) -> None:
    """However the way out is written; and the file that may be read is read, so that the test is one."""
    once = quote(file, safe="")
    for written in (file, once, quote(once, safe=""), f"/tmp/ray/{REF.session}/logs/{file}", f"/{file}", f"./{file}"):
        for node in (NODE, f"{NODE}/..", f"{NODE}%2f..", ".", "..", f"../{NODE}"):
            heard = asker.get(f"{REF.url}api/v0/logs/file?node_id={node}&filename={written}&lines=-1")
            check(heard, written, _AS_RAY)
            assert heard.status != 200, written
    heard = asker.get(f"{REF.url}api/v0/logs/file?node_id={NODE}&filename=deep/../{LOG}&lines=-1")
    assert (heard.status, heard.body) == (200, b"may be read\n")


def test_links_that_lead_out_of_the_store_are_not_even_listed(asker: Asker) -> None:
    listed: Any = asker.get(f"{REF.url}api/v0/logs?node_id={NODE}&glob=**").body.decode()
    assert LOG in listed
    assert "link" not in listed


def test_a_name_that_is_encoded_twice_is_another_name(asker: Asker) -> None:
    """What stands in front of the server and decodes once sees the same name as the server does."""
    namespace, cluster, session = REF.identity
    assert asker.get(f"/s/{namespace}/{cluster}/{session}/api/version").status == 200
    assert asker.get(f"/s/%64efault/{cluster}/{session}/api/version").status == 200
    for written in ("%2564efault", "%25%36%34efault"):
        assert asker.get(f"/s/{written}/{cluster}/{session}/api/version").status == 400
    assert asker.get(f"/s/{namespace}/%2573ample/{session}/api/version").status == 400


def test_what_comes_from_a_name_does_not_become_a_header(asker: Asker) -> None:
    """The name of a download is the asker's, and is the only one that comes back in a header."""
    name = f"a%0d%0a{hostile.INJECTED}:%201%22;%20filename=%22b.exe%ff%e2%80%ae"
    heard = asker.get(f"{REF.url}api/v0/logs/file?node_id={NODE}&filename={LOG}&download_filename={name}")
    heard.is_safe(name)
    (disposition,) = [value for key, value in heard.headers if key.lower() == "content-disposition"]
    assert disposition.isprintable()
    assert disposition.count('"') == 2
