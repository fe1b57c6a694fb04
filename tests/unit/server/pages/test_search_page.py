"""The search pages and the log viewer, as a browser without JavaScript gets them."""

import html
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from support.recorded_sample import NODE, REF, serving

HTML = {"Accept": "text/html"}
WORKER = "worker-d08dbbc3dc8723a409171043cb3c6beeb647c44e3bacd34df892a9a5-01000000-16292"
FILES = {
    "raylet.out": b"".join(b"2026-11-15 19:%02d:00 line %d\n" % (n // 100, n) for n in range(1, 3001)),
    f"{WORKER}.out": b"".join(b"%03d line\n" % i for i in range(40)),
    "evil <b>&.log": b"<script>alert(1)</script> needle \x1b[31mred\x1b[0m\n",
    "colors.log": b"\x1b[36mabove\x1b[0m\nbelow\n",
    "empty.log": b"",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("pages"), FILES) as client:
        yield client


def page(client: TestClient, path: str, status: int = 200) -> str:
    response = client.get(path, headers=HTML)
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    return response.text


def test_the_search_page_shows_hits_with_links(client: TestClient) -> None:
    text = page(client, "search?q=line+2999")
    assert "1 matching line" in text
    assert "<mark>line 2999</mark>" in text
    assert f'href="{REF.url}logs/{NODE}/raylet.out?offset=' in text
    assert "#L2999" in text


def test_hostile_lines_and_names_are_escaped(client: TestClient) -> None:
    for path in ("search?q=needle", f"logs/{NODE}/evil%20%3Cb%3E%26.log"):
        text = page(client, path)
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "<b>&.log" not in text


def test_terminal_codes_are_not_shown(client: TestClient) -> None:
    """Also if the match contains one, or is in the line above."""
    for query, shown in (
        ("red", "needle <mark>red</mark></pre>"),
        ("needle+%1B[31mre", "<mark>needle re</mark>d</pre>"),
    ):
        text = page(client, f"search?q={query}&file=evil*")
        hits = text.partition('<ol class="hits">')[2].partition("</ol>")[0]
        assert shown in hits
        assert "\x1b" not in hits
        assert "[31m" not in hits
    (line,) = re.findall(r'<span class="muted">(.*above.*)</span>\n', page(client, "search?q=below&context=1"))
    assert line == "above"


def test_the_search_page_without_a_text_is_a_form(client: TestClient) -> None:
    assert 'name="q"' in page(client, "search")
    assert "matching line" not in page(client, "search?q=")


def test_a_wrong_pattern_is_reported_on_the_page(client: TestClient) -> None:
    assert "invalid pattern" in page(client, "search?q=(&regex=1", 400)


def test_more_lines_are_on_the_next_page(client: TestClient) -> None:
    text = page(client, "search?q=line&limit=10&file=raylet.out&order=oldest")
    start = text.index('rel="next" href="') + len('rel="next" href="')
    link = text[start : text.index('"', start)].replace("&amp;", "&")
    assert "#L11" in page(client, f"search{link}")


def test_all_sessions_have_a_search_page(client: TestClient) -> None:
    text = page(client, "http://testserver/search?q=line+2999")
    assert re.search(r"2026-11-15 19:\d\d:\d\d UTC", text)
    assert f"{REF.namespace}/{REF.cluster}" in text


def test_the_pages_have_json(client: TestClient) -> None:
    assert client.get("search.json?q=line+2999").json()["total"] == 1
    assert client.get("http://testserver/search.json?q=line+2999").json()["hits"][0]["session"] == REF.session


@pytest.mark.parametrize(
    ("query", "anchor"),
    [("", "L1"), ("?line=2000", "L2000"), ("?end=1", "L3000"), ("?time=2026-11-15T19:20Z", "L2000"),
     ("?offset=27&line=2", "L2"), ("?line=99999", "L3000")],
)  # fmt: skip
def test_the_viewer_jumps_to_places(client: TestClient, query: str, anchor: str) -> None:
    assert f'id="{anchor}"' in page(client, f"logs/{NODE}/raylet.out{query}")


def test_the_viewer_shows_colours_owners_and_a_download(client: TestClient) -> None:
    text = page(client, f"logs/{NODE}/evil%20%3Cb%3E%26.log")
    assert '<span class="ansi-red">red</span>' in text
    assert "lines=-1" in text
    assert "task c2668a65bda616c1ffffffffffffffffffffffff01000000, attempt 0" in page(
        client, f"logs/{NODE}/{WORKER}.out"
    )


def links(text: str) -> dict[str, str]:
    """Return the links to matches by their ids, relative to the file."""
    found = re.findall(r'id="(find-\w+)" href="([^"]+)"', text)
    return {name: html.unescape(url).rpartition("/")[2] for name, url in found}


def test_the_viewer_finds_the_next_and_the_previous_match(client: TestClient) -> None:
    first = page(client, f"logs/{NODE}/raylet.out?q=LINE+299&from=0")
    assert 'class="log-line selected" id="L299"' in first
    assert '<mark class="match">line 299</mark>' in first
    second = page(client, f"logs/{NODE}/{links(first)['find-next']}")
    assert 'class="log-line selected" id="L2990"' in second
    again = page(client, f"logs/{NODE}/{links(second)['find-previous']}")
    assert 'class="log-line selected" id="L299"' in again
    assert "No line before this one matches" in page(client, f"logs/{NODE}/{links(again)['find-previous']}")


@pytest.mark.parametrize("query", ["q=line+1&word=1&case=1", "q=^.*line+1$&regex=1"])
def test_the_search_in_a_file_goes_round(client: TestClient, query: str) -> None:
    """Behind the last match, it says so, and begins at the start again."""
    last = page(client, f"logs/{NODE}/raylet.out?{query}&from=1")
    assert "No line from here on matches" in last
    assert 'class="log-line selected" id="L1"' in page(client, f"logs/{NODE}/{links(last)['find-next']}")
    assert "No line of this file matches" in page(client, f"logs/{NODE}/raylet.out?q=no+such&from=0")


def test_a_match_across_colours_is_marked_in_each(client: TestClient) -> None:
    text = page(client, f"logs/{NODE}/evil%20%3Cb%3E%26.log?q=needle+re&from=0")
    assert "No line of this file matches" in text  # the colour code is part of the line
    text = page(client, f"logs/{NODE}/evil%20%3Cb%3E%26.log?q=red&from=0")
    assert '<mark class="ansi-red match">red</mark>' in text


def test_the_viewer_of_an_empty_file_says_so(client: TestClient) -> None:
    assert "This file is empty" in page(client, f"logs/{NODE}/empty.log")


@pytest.mark.parametrize(
    ("path", "status"),
    [(f"logs/{NODE}/no-such.log", 404), ("logs/nobody/raylet.out", 404), (f"logs/{NODE}/raylet.out?line=x", 400),
     (f"logs/{NODE}/raylet.out?time=noon", 400), (f"logs/{NODE}/raylet.out?q=(&regex=1", 400),
     (f"logs/{NODE}/raylet.out?q=a&from=x", 400), (f"logs/{NODE}/raylet.out?q=a&before=-1", 400),
     (f"logs/{NODE}/raylet.out?q=a&from={'9' * 400}", 400), (f"logs/{NODE}/..%2F..%2Fsecret", 404)],
)  # fmt: skip
def test_wrong_places_are_reported(client: TestClient, path: str, status: int) -> None:
    page(client, path, status)


@pytest.mark.parametrize(
    "path", [f"logs/{NODE}/no-such.log", "nothing", "deeper//nothing", f"logs/{NODE}/raylet.out?line=x"]
)
def test_error_page_below_a_session_leads_back_to_it(client: TestClient, path: str) -> None:
    response = client.get(path, headers=HTML)
    assert f'href="{REF.url}" target="_top">Back to the session</a>' in response.text
    assert ">All sessions</a>" in response.text


def test_error_page_without_a_session_leads_to_the_list(client: TestClient) -> None:
    response = client.get("http://testserver/nothing", headers=HTML)
    assert (response.status_code, "Back to the session" in response.text) == (404, False)


def test_viewer_leads_back_to_the_search_with_all_its_filters(client: TestClient) -> None:
    """Also after moving to another match or part of the file."""
    for path, search in (("search", f"{REF.url}search"), ("http://testserver/search", "/search")):
        query = "q=line+299&file=raylet.out&order=oldest"
        hits = page(client, f"{path}?{query}")
        hit = html.unescape(re.findall(r'href="([^"]+logs/[^"]+#L299)"', hits)[0])
        hit = f"http://testserver{hit}"
        viewer = page(client, hit)
        back = f'<a class="button small" href="{html.escape(f"{search}?{query}")}">Back to the search</a>'
        assert back in viewer
        following = page(client, f"{hit.partition('#')[0]}&q=line&from=0")
        for link in (*links(following).values(), *re.findall(r'rel="next" href="[^"]+/([^"/]+)"', following)):
            assert back in page(client, f"logs/{NODE}/{html.unescape(link)}")
    assert "Back to the search" not in page(client, f"logs/{NODE}/raylet.out?line=3")


def test_the_bar_has_a_search_box(client: TestClient) -> None:
    response = client.get("", headers={**HTML, "Sec-Fetch-Dest": "document"})
    if response.status_code == 200:
        assert f'action="{REF.url}search"' in response.text


def test_all_matching_lines_are_counted_on_request(client: TestClient) -> None:
    text = page(client, "search?q=line&limit=10&file=raylet.out&counts=1")
    assert "3,000 matching lines" in text
    assert text.split('class="histogram"')[1].count("<rect ") == 31
    assert "1 file on 1 node" in text
    assert "from=1794769200000" in text
    assert "Count all matching lines" not in text
    first_page = page(client, "search?q=line&limit=10&file=raylet.out")
    assert "counts=1" in first_page


def test_the_form_keeps_all_filters(client: TestClient) -> None:
    text = page(
        client, "search?q=line&stream=out&job=01000000&task=ab&actor=cd&from=2026-11-15T19:20&to=2026-11-15T19:30"
    )
    for name, value in (("job", "01000000"), ("task", "ab"), ("actor", "cd"), ("from", "2026-11-15T19:20")):
        assert f'name="{name}" value="{value}"' in text
    assert '<option value="out" selected>' in text


def test_values_of_environment_variables_are_hidden(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For browsers, as in runtime environments. Programs get the line."""
    line = b'starting with {"env_vars": {"TOKEN": "s3cret"}}\n'
    with serving(tmp_path_factory.mktemp("masked"), {"agent.log": line}) as client:
        for path in ("search?q=starting&context=1", f"logs/{NODE}/agent.log", "api/history/search?q=starting"):
            text = client.get(path, headers={"User-Agent": "Mozilla/5.0"}).text
            assert "redacted" in text
            assert "s3cret" not in text
        assert "s3cret" in client.get("api/history/search?q=starting", headers={"User-Agent": "curl"}).text
