"""Pages for every kind of session, with all values escaped."""

import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from rayhistory.sessions import SessionRef
from rayhistory.web import (
    CONTENT_SECURITY_POLICY,
    HOME_JSON_PATH,
    HOME_PATH,
    STATIC_DIR,
    GapGroup,
    GapLocation,
    SessionFilters,
    SessionRow,
    SessionRowCounts,
    render_charts,
    render_frame,
    render_gaps,
    render_home,
    render_message,
    render_progress,
)

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_794_777_600_000
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Versions(msgspec.Struct):
    chosen: str | None
    versions: list[str]


class Page(HTMLParser):
    """A parsed page: elements with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self) -> list[str]:
        return [link["href"] or "" for link in self.all("a")]


def make_session(**changes: object) -> SessionRow:
    row = SessionRow(
        namespace="ml",
        cluster="trainer",
        session="session_2026-11-15_19-20-00_123456_4321",
        state="ended",
        url="/s/ml/trainer/session_2026-11-15_19-20-00_123456_4321/",
        started_ms=NOW - 2 * HOUR,
        ended_ms=NOW - HOUR,
        ray_version="2.60.0",
        size_bytes=5 * 1024**2,
        counts=make_counts(),
    )
    return msgspec.structs.replace(row, **changes)


def make_counts(**changes: object) -> SessionRowCounts:
    counts = SessionRowCounts(jobs={"SUCCEEDED": 3}, tasks=12_480, failed_tasks=0, actors=7, nodes=2, gaps=0)
    return msgspec.structs.replace(counts, **changes)


def home_html(*sessions: SessionRow, **changes: object) -> str:
    values: dict[str, object] = {
        "filters": SessionFilters(),
        "total": len(sessions),
        "next_page": None,
        "previous_page": None,
        "dashboards": ["2.60.0"],
        "notice": None,
        "store": "/data/ray",
        "now_ms": NOW,
        "version": "1.2.3",
    }
    return render_home(sessions, **(values | changes))  # type: ignore[arg-type]


def home(*sessions: SessionRow, **changes: object) -> Page:
    return Page(home_html(*sessions, **changes))


def frame_html(session: SessionRow, **changes: object) -> str:
    values: dict[str, object] = {
        "as_of_ms": None,
        "last_ms": NOW - HOUR,
        "dashboards": Versions("2.60.0", ["2.60.0"]),
        "now_ms": NOW,
        "version": "1.2.3",
    }
    return render_frame(session, **(values | changes))  # type: ignore[arg-type]


def frame(session: SessionRow, **changes: object) -> Page:
    return Page(frame_html(session, **changes))


def hostile_pages() -> dict[str, str]:
    filters = SessionFilters(
        q=HOSTILE,
        namespace=HOSTILE,
        state="ended",
        owner=f"rayjob/{HOSTILE}",
        since=HOSTILE,
        start=HOSTILE,
        end=HOSTILE,
        sort=HOSTILE,
        page=HOSTILE,
        namespaces=[HOSTILE],
    )
    hostile = make_session(
        namespace=HOSTILE,
        cluster=HOSTILE,
        session=HOSTILE,
        owner_kind=HOSTILE,
        owner_name=HOSTILE,
        ray_version=HOSTILE,
        counts=make_counts(jobs={HOSTILE: 1}, failed_tasks=4, gaps=2),
    )
    return {
        "home": home_html(
            hostile, filters=filters, dashboards=[HOSTILE, "2.60.0"], notice=HOSTILE, store=HOSTILE, version=HOSTILE
        ),
        "frame": frame_html(hostile, dashboards=Versions(HOSTILE, [HOSTILE, "2.60.0"])),
        "gaps": render_gaps(
            hostile,
            [
                GapGroup(
                    code=HOSTILE,
                    summary=HOSTILE,
                    meaning=HOSTILE,
                    remedy=f"`{HOSTILE}`",
                    loss=True,
                    places=[GapLocation(place=HOSTILE, detail=HOSTILE)],
                )
            ],
            complete=False,
            version=HOSTILE,
        ),
        "empty": home_html(store=HOSTILE),
        "no match": home_html(filters=filters),
        "past the end": home_html(filters=filters, total=70),
        "charts": render_charts(
            cluster=HOSTILE, uid="rayDefaultDashboard", title=HOSTILE, solo=False, running=False, version=HOSTILE
        ),
        "message": render_message(status=404, title=HOSTILE, message=HOSTILE, hint=f"`{HOSTILE}`", version=HOSTILE),
        "progress": render_progress(
            session=hostile, title=HOSTILE, detail=HOSTILE, percent=None, refresh_seconds=2, version=HOSTILE
        ),
    }


HOSTILE_PAGES = ("home", "frame", "gaps", "empty", "no match", "past the end", "charts", "message", "progress")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    pages = hostile_pages()
    assert tuple(pages) == HOSTILE_PAGES
    return pages


@pytest.fixture(params=HOSTILE_PAGES)
def any_page(request: pytest.FixtureRequest, pages: dict[str, str]) -> Page:
    return Page(pages[request.param])


def test_markup_in_names_is_escaped(any_page: Page) -> None:
    names = ("history", "frame", "uplot-1.6.32.min", "chart_format", "chart_panels", "chart_variables", "charts")
    assert {script["src"] for script in any_page.all("script")} <= {f"/assets/{name}.js" for name in names}
    assert any_page.all("img") == []
    assert HOSTILE in any_page.text


def test_pages_have_no_inline_script_or_style(any_page: Page) -> None:
    assert any_page.all("style") == []
    attributes = {name for _, attributes in any_page.elements for name in attributes}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}


def test_pages_load_only_files_of_the_server(any_page: Page) -> None:
    loaded = [link["href"] for link in any_page.all("link") if link["rel"] in ("stylesheet", "icon")]
    loaded += [script["src"] for script in any_page.all("script")]
    assert {(STATIC_DIR / str(url).removeprefix("/assets/")).is_file() for url in loaded} == {True}
    assert not [link for link in any_page.links() if urlsplit(link).netloc]


def test_static_files_load_nothing_from_other_hosts() -> None:
    for file in STATIC_DIR.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), file.name


def test_used_icons_exist(any_page: Page) -> None:
    known = {f"#{symbol['id']}" for symbol in any_page.all("symbol")}
    assert {use["href"] for use in any_page.all("use")} <= known


def test_content_security_policy_allows_only_own_files() -> None:
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


def test_row_describes_the_session() -> None:
    page = home(make_session(owner_kind="rayjob", owner_name="nightly"))
    for expected in (
        "Ended",
        "trainer",
        "ml · RayJob nightly",
        "2026-11-15 19:20",
        "2 h ago",
        "1h",
        "3 succeeded",
        "12,480",
        "5.0 MiB",
        "2.60.0",
    ):
        assert expected in page.text
    assert page.links().count(make_session().url) == 2


def test_short_session_name_has_the_full_name_as_title() -> None:
    page = home(make_session())
    assert "2026-11-15_19-20-00" in page.text
    assert make_session().session in [span.get("title") for span in page.all("span")]


def test_rows_keep_their_order() -> None:
    text = home(make_session(cluster="second-by-name"), make_session(cluster="first-by-name")).text
    assert text.index("second-by-name") < text.index("first-by-name")


def test_session_without_counts_is_shown_as_not_indexed() -> None:
    page = home(make_session(counts=None))
    assert "not indexed yet" in page.text
    assert "no jobs" not in page.text


def test_every_row_has_all_columns() -> None:
    for row in (make_session(), make_session(counts=None)):
        page = home(row)
        headers = [th for th in page.all("th") if th.get("scope") == "col"]
        cells = page.all("td") + [th for th in page.all("th") if th.get("scope") == "row"]
        assert sum(int(cell.get("colspan") or 1) for cell in cells) == len(headers)


def test_jobs_are_counted_by_status() -> None:
    jobs = {"STOPPED": 1, "FAILED": 2, "SUCCEEDED": 1_000, "PENDING": 0, "NEW_IN_RAY_3": 5}
    text = home(make_session(counts=make_counts(jobs=jobs))).text
    assert re.findall(r"[\d,]+ (?:succeeded|failed|stopped|pending|new_in_ray_3)", text) == [
        "1,000 succeeded",
        "2 failed",
        "1 stopped",
        "5 new_in_ray_3",
    ]


def test_failed_tasks_and_gaps_are_hidden_if_zero() -> None:
    bad = home(make_session(counts=make_counts(failed_tasks=1_037, gaps=1))).text
    assert "1,037 failed" in bad
    assert "1 gap" in bad
    good = home(make_session()).text
    assert "failed" not in good
    assert "gap" not in good


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "ended"}, HOUR),
        ({"state": "running", "ended_ms": None}, 2 * HOUR),
        ({"state": "vanished"}, HOUR),
        ({"state": "vanished", "ended_ms": None}, None),
        ({"state": "ended", "ended_ms": None}, None),
        ({"state": "ended", "started_ms": None}, None),
        ({"state": "ended", "ended_ms": NOW - 3 * HOUR}, None),
    ],
)
def test_duration_extends_to_now_only_while_running(changes: dict[str, object], expected: int | None) -> None:
    assert make_session(**changes).duration_ms(NOW) == expected


def test_session_with_few_known_values_is_shown() -> None:
    row = make_session(started_ms=None, ended_ms=None, ray_version=None, size_bytes=None, counts=None)
    page = home(row)
    assert "unknown" in page.text
    assert page.all("time") == []
    assert row.url in page.links()


def test_empty_store_page_explains_how_to_record_a_session() -> None:
    page = home(store="s3://bucket/root")
    assert "No sessions yet" in page.text
    assert "s3://bucket/root" in page.text
    assert "rayhistory run -- python my_job.py" in page.text
    assert page.all("table") == []


def test_filter_without_matches_can_be_cleared() -> None:
    page = home(filters=SessionFilters(q="nope", state="vanished"))
    assert "No matching sessions" in page.text
    assert "No sessions yet" not in page.text
    assert HOME_PATH in page.links()


def test_page_past_the_end_links_to_the_first_page() -> None:
    page = home(filters=SessionFilters(q="train", page="99"), total=70)
    assert "This page is empty" in page.text
    assert f"{HOME_PATH}?q=train" in page.links()


def test_filters_round_trip_through_the_form() -> None:
    filters = SessionFilters(
        q='a "b" & c',
        namespace="gone",
        state="ended",
        owner="rayjob/x",
        since="3h",
        start="2026-11-01",
        sort="-cluster",
        namespaces=["ml", "prod"],
    )
    page = home(make_session(), filters=filters)
    inputs = {field["name"]: field["value"] for field in page.all("input") if "form" not in field}
    assert inputs == {"q": 'a "b" & c', "state": "ended", "sort": "-cluster", "from": "2026-11-01", "to": ""}
    assert [option["value"] for option in page.all("option") if "selected" in option] == ["gone", "rayjob/x", "3h"]
    assert [option["value"] for option in page.all("option")] == [
        *("", "gone", "ml", "prod"),
        *("", "rayjob", "rayservice", "none", "rayjob/x"),
        *("", "1h", "24h", "7d", "30d", "3h"),
    ]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("", "date"), ("2026-11-15", "date"), ("2026-11-15T19:20Z", "text"), ("1794770340000", "text")],
)
def test_time_of_day_stays_in_the_form(value: str, kind: str) -> None:
    """Browsers clear a date input whose value is not a plain date."""
    page = home(make_session(), filters=SessionFilters(start=value or None, end=value or None))
    fields = [(field["type"], field["value"]) for field in page.all("input") if field["name"] in ("from", "to")]
    assert fields == [(kind, value), (kind, value)]


def test_filters_round_trip_through_links() -> None:
    filters = SessionFilters(
        q="a&b=c #1",
        namespace="ml",
        state="running",
        owner="rayjob/x",
        since="24h",
        start="2026-11-01",
        end="2026-11-15",
        sort="started",
        page="eyJ4Ijox+/==",
    )
    page = home(make_session(), filters=filters)
    json_link = next(urlsplit(link) for link in page.links() if link.startswith(HOME_JSON_PATH))
    assert parse_qs(json_link.query) == {
        "q": ["a&b=c #1"],
        "namespace": ["ml"],
        "state": ["running"],
        "owner": ["rayjob/x"],
        "since": ["24h"],
        "from": ["2026-11-01"],
        "to": ["2026-11-15"],
        "sort": ["started"],
        "page": ["eyJ4Ijox+/=="],
    }


def test_selecting_a_state_keeps_other_filters_and_resets_the_page() -> None:
    filters = SessionFilters(q="train", namespace="ml", page="3")
    assert filters.with_state("vanished").url(HOME_PATH) == "/home?q=train&namespace=ml&state=vanished"


def test_column_header_cycles_through_sort_orders() -> None:
    filters = SessionFilters(q="train", page="3")
    sorts = []
    for _ in range(3):
        filters = filters.sorted_by("started")
        sorts.append((filters.sort, filters.aria_sort("started"), filters.aria_sort("cluster")))
    assert sorts == [("started", "ascending", "none"), ("-started", "descending", "none"), (None, "none", "none")]
    assert filters.url(HOME_PATH) == "/home?q=train"


def test_owner_links_to_its_sessions() -> None:
    page = home(
        make_session(owner_kind="rayservice", owner_name="shop"), filters=SessionFilters(state="ended", page="2")
    )
    assert "/home?state=ended&owner=rayservice%2Fshop" in page.links()


def test_gap_count_links_to_the_gaps_page() -> None:
    assert f"{make_session().url}gaps" in home(make_session(counts=make_counts(gaps=1))).links()


def test_links_are_reachable_by_keyboard() -> None:
    """Only the cluster name is skipped, because it has the same target as the button."""
    row = make_session(owner_kind="rayservice", owner_name="shop", counts=make_counts(gaps=1))
    skipped = [link["href"] for link in home(row).all("a") if link.get("tabindex") == "-1"]
    assert skipped == [row.url]


def test_unreadable_counts_are_not_shown_as_missing() -> None:
    page = home(make_session(counts=None, unreadable=True))
    assert "temporarily unavailable" in page.text
    assert "not indexed yet" not in page.text


def test_dashboard_menu_needs_several_versions() -> None:
    several = home(make_session(dashboard="2.60.0"), dashboards=["2.60.0", "2.55.0"])
    assert f"{make_session().url}?dashboard=2.55.0" in several.links()
    assert "Dashboard 2.60.0 (default)" in several.text
    assert not [link for link in home(make_session()).links() if "dashboard=" in link]


def test_url_without_filters_has_no_query() -> None:
    assert SessionFilters().url(HOME_PATH) == HOME_PATH
    assert not SessionFilters(page="2", namespaces=["ml"]).active


def test_paging_links_are_rendered() -> None:
    page = home(make_session(), total=3, next_page="/home?page=3", previous_page="/home?page=1")
    assert {"/home?page=3", "/home?page=1"} <= set(page.links())
    assert "3 sessions, 1 on this page" in page.text
    assert not [link for link in home(make_session()).all("a") if link.get("rel")]


def test_only_lists_with_running_sessions_refresh() -> None:
    def refreshes(page: Page) -> bool:
        return any("data-live" in attributes for attributes in page.all("div"))

    assert refreshes(home(make_session(), make_session(state="running", ended_ms=None)))
    assert not refreshes(home(make_session()))


def test_bar_shows_session_state_and_age() -> None:
    page = frame(make_session())
    for expected in ("trainer", "ml · 2026-11-15_19-20-00", "Ended", "Ended 1 h ago", "Dashboard 2.60.0"):
        assert expected in page.text
    (bar,) = [header for header in page.all("header") if header.get("id") == "bar"]
    assert bar["data-session-path"] == make_session().url.rstrip("/")
    assert HOME_PATH in page.links()


def test_announcement_for_screen_readers_has_no_age() -> None:
    """An age would be announced at every change."""
    page = frame(make_session())
    assert [element["id"] for _, element in page.elements if element.get("role") == "status"] == ["announcement"]
    (data_age,) = (element for _, element in page.elements if element.get("id") == "data-age")
    assert not {"role", "aria-live"} & set(data_age)


def test_bar_leads_to_the_diagnosis_of_every_session() -> None:
    """Slowness is of interest, too."""
    for session, text, style in (
        (make_session(), "Diagnosis", "verdict quiet"),
        (make_session(headline="Task a raised an exception"), "Task a raised an exception", "verdict"),
    ):
        page = frame(session)
        (link,) = [link for link in page.all("a") if link.get("id") == "verdict"]
        assert (link["href"], link["class"]) == (f"{session.url}diagnosis", style)
        assert "hidden" not in link
        assert text in page.text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"last_ms": NOW - 3 * MINUTE}, "Data as of 3 min ago"),
        ({"last_ms": 0}, "No data yet"),
        ({"as_of_ms": NOW - 5 * MINUTE}, "As of 2026-11-15 21:15 UTC"),
    ],
)
def test_bar_of_a_running_session_shows_the_data_age(changes: dict[str, object], expected: str) -> None:
    page = frame(make_session(state="running", ended_ms=None), **changes)
    assert expected in page.text
    assert "Back to now" in page.text


def test_bar_hides_gaps_if_zero() -> None:
    def hidden(session: SessionRow) -> bool:
        (link,) = [link for link in frame(session).all("a") if link.get("id") == "gaps"]
        return "hidden" in link

    assert hidden(make_session())
    assert hidden(make_session(counts=None))
    assert not hidden(make_session(counts=make_counts(gaps=2)))


def test_bar_has_a_version_menu_if_there_are_several() -> None:
    page = frame(make_session(), dashboards=Versions("2.55.0", ["2.60.0", "2.55.0"]))
    assert [option["value"] for option in page.all("option")] == ["2.60.0", "2.55.0"]
    assert [option["value"] for option in page.all("option") if "selected" in option] == ["2.55.0"]
    assert frame(make_session()).all("select") == []


def test_gaps_page_shows_meaning_remedy_and_places() -> None:
    truncated = GapGroup(
        code="object_truncated",
        summary="2,000 objects are truncated",
        meaning="The rest could not be read.",
        remedy="Run `rayhistory copy` again.",
        loss=True,
        places=[GapLocation(place="a/b.gz", detail=""), GapLocation(place="a/c.gz", detail="after 7 lines")],
        more_places=1_998,
    )
    note = GapGroup(
        code="task_open",
        summary="1 task was running",
        meaning="Ray was stopped.",
        remedy="None.",
        loss=False,
        places=[],
    )
    page = Page(render_gaps(make_session(), [truncated, note], complete=False, version="1"))
    for expected in (
        "Incomplete.",
        "Missing 2,000 objects are truncated",
        "The rest could not be read.",
        "How to fix Run rayhistory copy again.",
        "2,000 occurrences",
        "a/c.gz: after 7 lines",
        "and 1,998 more",
        "Info 1 task was running",
        "object_truncated",
    ):
        assert expected in page.text
    assert {f"{make_session().url}gaps.json", make_session().url, HOME_PATH} <= set(page.links())
    informational = Page(render_gaps(make_session(), [note], complete=True, version="1"))
    assert "Complete. The notes below are informational." in informational.text
    assert (
        "Complete. This session has no gaps." in Page(render_gaps(make_session(), [], complete=True, version="1")).text
    )


def test_message_shows_status_and_hint() -> None:
    html = render_message(
        status=404,
        title="Session not found",
        message="`x` is not in namespace ml.",
        hint="Try `rayhistory sessions`.",
        version="1",
    )
    page = Page(html)
    for expected in ("404 Not Found", "Session not found", "x is not in namespace ml.", "Try rayhistory"):
        assert expected in page.text
    assert "<code>rayhistory sessions</code>" in html


def test_message_with_unknown_status_is_rendered() -> None:
    page = Page(render_message(status=599, title="t", message="m", hint=None, version="1"))
    assert "599 Error" in page.text


@pytest.mark.parametrize(("percent", "value"), [(34, "34"), (-1, "0"), (250, "100"), (None, None)])
def test_progress_page_refreshes_and_shows_the_percentage(percent: int | None, value: str | None) -> None:
    ref = SessionRef("ml", "trainer", "session_x")
    page = Page(
        render_progress(
            session=ref,
            title="Indexing",
            detail="3 of 9 files",
            percent=percent,
            refresh_seconds=2,
            version="1",
        )
    )
    assert {"http-equiv": "refresh", "content": "2"} in page.all("meta")
    assert page.all("progress")[0].get("value") == value
    assert "3 of 9 files" in page.text
    assert "session_x" in page.text


def test_counts_lead_to_their_pages() -> None:
    row = make_session(index_bytes=3 * 1024**2)
    links = {element.get("href") for element in home(row).all("a")}
    assert {f"{row.url}#/jobs", f"{row.url}#/actors", f"{row.url}#/cluster"} <= links


def test_stored_size_and_index_size_are_both_named() -> None:
    text = home(make_session(size_bytes=5 * 1024**2, index_bytes=3 * 1024**2)).text
    assert "5.0 MiB" in text
    assert "index 3.0 MiB" in text


def test_failed_filter_is_a_link_that_keeps_the_other_filters() -> None:
    filters = SessionFilters(q="train", cluster="trainer")
    links = {element.get("href") for element in home(make_session(), filters=filters).all("a")}
    assert "/home?q=train&cluster=trainer&failed=1" in links
    chosen = msgspec.structs.replace(filters, failed=True)
    links = {element.get("href") for element in home(make_session(), filters=chosen).all("a")}
    assert "/home?q=train&cluster=trainer" in links


def test_sessions_that_were_not_searched_are_counted() -> None:
    assert "jobs of the 3 oldest sessions were not searched" in home(make_session(), unsearched=3).text
