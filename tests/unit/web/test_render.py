"""Our own pages: what they say for every kind of session, and that nothing in a name can become markup."""

import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from rayhistory.layout import SessionRef
from rayhistory.web import (
    CONTENT_SECURITY_POLICY,
    HOME_JSON_PATH,
    HOME_PATH,
    STATIC_DIR,
    Gap,
    HomeFilters,
    SessionCounts,
    SessionRow,
    render_frame,
    render_gaps,
    render_home,
    render_message,
    render_progress,
)
from rayhistory.web.format import (
    code_spans,
    format_age,
    format_bytes,
    format_duration,
    short_session_name,
)

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_794_777_600_000
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Frontends(msgspec.Struct):
    chosen: str | None
    versions: list[str]


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.pieces))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self) -> list[str]:
        return [link["href"] or "" for link in self.all("a")]


def a_session(**changes: object) -> SessionRow:
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
        counts=some_counts(),
    )
    return msgspec.structs.replace(row, **changes)


def some_counts(**changes: object) -> SessionCounts:
    counts = SessionCounts(jobs={"SUCCEEDED": 3}, tasks=12_480, failed_tasks=0, actors=7, nodes=2, gaps=0)
    return msgspec.structs.replace(counts, **changes)


def home_html(*sessions: SessionRow, **changes: object) -> str:
    values: dict[str, object] = {
        "filters": HomeFilters(),
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
        "moment_ms": None,
        "last_ms": NOW - HOUR,
        "dashboards": Frontends("2.60.0", ["2.60.0"]),
        "now_ms": NOW,
        "version": "1.2.3",
    }
    return render_frame(session, **(values | changes))  # type: ignore[arg-type]


def frame(session: SessionRow, **changes: object) -> Page:
    return Page(frame_html(session, **changes))


def every_page() -> dict[str, str]:
    filters = HomeFilters(
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
    hostile = a_session(
        namespace=HOSTILE,
        cluster=HOSTILE,
        session=HOSTILE,
        owner_kind=HOSTILE,
        owner_name=HOSTILE,
        ray_version=HOSTILE,
        counts=some_counts(jobs={HOSTILE: 1}, failed_tasks=4, gaps=2),
    )
    return {
        "home": home_html(
            hostile, filters=filters, dashboards=[HOSTILE, "2.60.0"], notice=HOSTILE, store=HOSTILE, version=HOSTILE
        ),
        "frame": frame_html(hostile, dashboards=Frontends(HOSTILE, [HOSTILE, "2.60.0"])),
        "gaps": render_gaps(
            hostile,
            [Gap(kind=HOSTILE, detail=HOSTILE, count=1, sources=[HOSTILE, HOSTILE])],
            complete=False,
            version=HOSTILE,
        ),
        "empty": home_html(store=HOSTILE),
        "no match": home_html(filters=filters),
        "past the end": home_html(filters=filters, total=70),
        "message": render_message(status=404, title=HOSTILE, message=HOSTILE, hint=f"`{HOSTILE}`", version=HOSTILE),
        "progress": render_progress(
            session=hostile, title=HOSTILE, detail=HOSTILE, percent=None, refresh_seconds=2, version=HOSTILE
        ),
    }


@pytest.fixture(params=every_page().items(), ids=lambda item: item[0])
def any_page(request: pytest.FixtureRequest) -> Page:
    return Page(request.param[1])


def test_script_and_markup_in_names_stay_text(any_page: Page) -> None:
    assert {script["src"] for script in any_page.all("script")} <= {"/assets/history.js", "/assets/frame.js"}
    assert any_page.all("img") == []
    assert HOSTILE in any_page.text


def test_no_page_has_inline_script_or_style(any_page: Page) -> None:
    assert any_page.all("style") == []
    attributes = {name for _, attributes in any_page.elements for name in attributes}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}


def test_pages_load_only_our_own_files(any_page: Page) -> None:
    loaded = [link["href"] for link in any_page.all("link") if link["rel"] in ("stylesheet", "icon")]
    loaded += [script["src"] for script in any_page.all("script")]
    assert {(STATIC_DIR / str(url).removeprefix("/assets/")).is_file() for url in loaded} == {True}
    assert not [link for link in any_page.links() if urlsplit(link).netloc]


def test_static_files_ask_nobody_else() -> None:
    for file in STATIC_DIR.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(", text), file.name


def test_every_icon_that_a_page_uses_exists(any_page: Page) -> None:
    known = {f"#{symbol['id']}" for symbol in any_page.all("symbol")}
    assert {use["href"] for use in any_page.all("use")} <= known


def test_the_policy_allows_nothing_inline_and_nothing_foreign() -> None:
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


def test_a_row_tells_what_the_session_was() -> None:
    page = home(a_session(owner_kind="rayjob", owner_name="nightly"))
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
    assert page.links().count(a_session().url) == 2


def test_the_short_session_name_has_the_full_one_as_title() -> None:
    page = home(a_session())
    assert "2026-11-15_19-20-00" in page.text
    assert a_session().session in [span.get("title") for span in page.all("span")]


def test_rows_keep_the_order_of_the_caller() -> None:
    text = home(a_session(cluster="second-by-name"), a_session(cluster="first-by-name")).text
    assert text.index("second-by-name") < text.index("first-by-name")


def test_a_session_without_counts_is_not_indexed_yet_rather_than_empty() -> None:
    page = home(a_session(counts=None))
    assert "not indexed yet" in page.text
    assert "no jobs" not in page.text


def test_every_row_fills_every_column() -> None:
    for row in (a_session(), a_session(counts=None)):
        page = home(row)
        headers = [th for th in page.all("th") if th.get("scope") == "col"]
        cells = page.all("td") + [th for th in page.all("th") if th.get("scope") == "row"]
        assert sum(int(cell.get("colspan") or 1) for cell in cells) == len(headers)


def test_jobs_are_shown_by_result_and_results_without_jobs_are_not() -> None:
    jobs = {"STOPPED": 1, "FAILED": 2, "SUCCEEDED": 1_000, "PENDING": 0, "NEW_IN_RAY_3": 5}
    text = home(a_session(counts=some_counts(jobs=jobs))).text
    assert re.findall(r"[\d,]+ (?:succeeded|failed|stopped|pending|new_in_ray_3)", text) == [
        "1,000 succeeded",
        "2 failed",
        "1 stopped",
        "5 new_in_ray_3",
    ]


def test_failed_tasks_and_gaps_are_shown_only_where_there_are_some() -> None:
    bad = home(a_session(counts=some_counts(failed_tasks=1_037, gaps=1))).text
    assert "1,037 failed" in bad
    assert "1 gap" in bad
    good = home(a_session()).text
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
def test_only_a_running_session_lasts_until_now(changes: dict[str, object], expected: int | None) -> None:
    assert a_session(**changes).duration_ms(NOW) == expected


def test_a_session_of_which_little_is_known_still_has_its_row() -> None:
    row = a_session(started_ms=None, ended_ms=None, ray_version=None, size_bytes=None, counts=None)
    page = home(row)
    assert "unknown" in page.text
    assert page.all("time") == []
    assert row.url in page.links()


def test_an_empty_store_is_named_and_shows_how_to_record_a_session() -> None:
    page = home(store="s3://bucket/root")
    assert "No sessions yet" in page.text
    assert "s3://bucket/root" in page.text
    assert "rayhistory run -- python my_job.py" in page.text
    assert page.all("table") == []


def test_a_filter_without_match_says_so_and_can_be_cleared() -> None:
    page = home(filters=HomeFilters(q="nope", state="vanished"))
    assert "No session matches" in page.text
    assert "No sessions yet" not in page.text
    assert HOME_PATH in page.links()


def test_a_page_past_the_end_leads_to_the_first_one() -> None:
    page = home(filters=HomeFilters(q="train", page="99"), total=70)
    assert "Nothing on this page" in page.text
    assert f"{HOME_PATH}?q=train" in page.links()


def test_filters_round_trip_through_the_form() -> None:
    filters = HomeFilters(
        q='a "b" & c',
        namespace="gone",
        state="ended",
        owner="rayjob/x",
        since="3h",
        start="2026-11-01",
        sort="-cluster",
        namespaces=["ml", "prod"],
    )
    page = home(a_session(), filters=filters)
    inputs = {field["name"]: field["value"] for field in page.all("input")}
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
def test_a_time_that_is_no_day_stays_in_the_form(value: str, kind: str) -> None:
    """Browsers empty a field for dates that holds anything else."""
    page = home(a_session(), filters=HomeFilters(start=value or None, end=value or None))
    fields = [(field["type"], field["value"]) for field in page.all("input") if field["name"] in ("from", "to")]
    assert fields == [(kind, value), (kind, value)]


def test_filters_round_trip_through_links() -> None:
    filters = HomeFilters(
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
    page = home(a_session(), filters=filters)
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


def test_choosing_a_state_keeps_the_other_filters_and_starts_at_the_first_page() -> None:
    filters = HomeFilters(q="train", namespace="ml", page="3")
    assert filters.with_state("vanished").url(HOME_PATH) == "/home?q=train&namespace=ml&state=vanished"


def test_the_head_of_a_column_sorts_by_it_then_the_other_way_then_as_usual() -> None:
    filters = HomeFilters(q="train", page="3")
    sorts = []
    for _ in range(3):
        filters = filters.sorted_by("started")
        sorts.append((filters.sort, filters.order_of("started"), filters.order_of("cluster")))
    assert sorts == [("started", "ascending", "none"), ("-started", "descending", "none"), (None, "none", "none")]
    assert filters.url(HOME_PATH) == "/home?q=train"


def test_an_owner_leads_to_all_its_sessions() -> None:
    page = home(a_session(owner_kind="rayservice", owner_name="shop"), filters=HomeFilters(state="ended", page="2"))
    assert "/home?state=ended&owner=rayservice%2Fshop" in page.links()


def test_gaps_lead_to_what_is_missing() -> None:
    assert f"{a_session().url}gaps" in home(a_session(counts=some_counts(gaps=1))).links()


def test_every_link_that_leads_elsewhere_than_its_row_is_reached_by_keys() -> None:
    """The name of a cluster leads where the button does, which is enough."""
    row = a_session(owner_kind="rayservice", owner_name="shop", counts=some_counts(gaps=1))
    skipped = [link["href"] for link in home(row).all("a") if link.get("tabindex") == "-1"]
    assert skipped == [row.url]


def test_counts_that_cannot_be_read_now_are_not_taken_for_none() -> None:
    page = home(a_session(counts=None, unreadable=True))
    assert "cannot be read now" in page.text
    assert "not indexed yet" not in page.text


def test_a_dashboard_can_be_chosen_only_where_there_are_several() -> None:
    several = home(a_session(dashboard="2.60.0"), dashboards=["2.60.0", "2.55.0"])
    assert f"{a_session().url}?dashboard=2.55.0" in several.links()
    assert "Dashboard 2.60.0 (suits best)" in several.text
    assert not [link for link in home(a_session()).links() if "dashboard=" in link]


def test_no_filter_means_no_query() -> None:
    assert HomeFilters().url(HOME_PATH) == HOME_PATH
    assert not HomeFilters(page="2", namespaces=["ml"]).active


def test_paging_links_are_those_given() -> None:
    page = home(a_session(), total=3, next_page="/home?page=3", previous_page="/home?page=1")
    assert {"/home?page=3", "/home?page=1"} <= set(page.links())
    assert "3 sessions, 1 on this page" in page.text
    assert not [link for link in home(a_session()).all("a") if link.get("rel")]


def test_only_a_view_with_a_running_session_refreshes_its_rows() -> None:
    def refreshes(page: Page) -> bool:
        return any("data-live" in attributes for attributes in page.all("div"))

    assert refreshes(home(a_session(), a_session(state="running", ended_ms=None)))
    assert not refreshes(home(a_session()))


def test_the_bar_tells_which_session_this_is_in_what_state_and_how_old() -> None:
    page = frame(a_session())
    for expected in ("trainer", "ml · 2026-11-15_19-20-00", "Ended", "Ended 1 h ago", "Dashboard 2.60.0"):
        assert expected in page.text
    (bar,) = [header for header in page.all("header") if header.get("id") == "bar"]
    assert bar["data-address"] == a_session().url.rstrip("/")
    assert HOME_PATH in page.links()


def test_what_a_screen_reader_says_by_itself_is_no_age() -> None:
    """An age changes all the time."""
    page = frame(a_session())
    assert [element["id"] for _, element in page.elements if element.get("role") == "status"] == ["changed"]
    (shown,) = (element for _, element in page.elements if element.get("id") == "shown")
    assert not {"role", "aria-live"} & set(shown)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"last_ms": NOW - 3 * MINUTE}, "Up to 3 min ago"),
        ({"last_ms": 0}, "Nothing recorded yet"),
        ({"moment_ms": NOW - 5 * MINUTE}, "As of 2026-11-15 21:15 UTC"),
    ],
)
def test_the_bar_tells_until_when_a_running_session_is_shown(changes: dict[str, object], expected: str) -> None:
    page = frame(a_session(state="running", ended_ms=None), **changes)
    assert expected in page.text
    assert "Now" in page.text


def test_the_bar_shows_gaps_only_where_there_are_some() -> None:
    def hidden(session: SessionRow) -> bool:
        (link,) = [link for link in frame(session).all("a") if link.get("id") == "gaps"]
        return "hidden" in link

    assert hidden(a_session())
    assert hidden(a_session(counts=None))
    assert not hidden(a_session(counts=some_counts(gaps=2)))


def test_the_bar_offers_a_choice_of_dashboards_where_there_are_several() -> None:
    page = frame(a_session(), dashboards=Frontends("2.55.0", ["2.60.0", "2.55.0"]))
    assert [option["value"] for option in page.all("option")] == ["2.60.0", "2.55.0"]
    assert [option["value"] for option in page.all("option") if "selected" in option] == ["2.55.0"]
    assert frame(a_session()).all("select") == []


def test_gaps_are_told_in_words_with_where_they_are() -> None:
    gaps = [
        Gap(kind="truncated gzip", detail="node 1", count=2_000, sources=["a/b.gz", "a/c.gz"]),
        Gap(kind="task closed at the session's end", detail="", count=1, sources=[]),
    ]
    page = Page(render_gaps(a_session(), gaps, complete=False, version="1"))
    for expected in ("Truncated gzip", "2,000", "2 objects", "a/c.gz", "Task closed at the session's end"):
        assert expected in page.text
    assert {f"{a_session().url}gaps.json", a_session().url, HOME_PATH} <= set(page.links())
    assert "Nothing was lost" in Page(render_gaps(a_session(), gaps, complete=True, version="1")).text
    assert "Nothing is missing" in Page(render_gaps(a_session(), [], complete=True, version="1")).text


def test_a_message_shows_status_reason_and_what_to_do() -> None:
    html = render_message(
        status=404,
        title="No such session",
        message="`x` is not in namespace ml.",
        hint="Try `rayhistory sessions`.",
        version="1",
    )
    page = Page(html)
    for expected in ("404 Not Found", "No such session", "x is not in namespace ml.", "Try rayhistory"):
        assert expected in page.text
    assert "<code>rayhistory sessions</code>" in html


def test_a_message_with_an_unusual_status_still_renders() -> None:
    page = Page(render_message(status=599, title="t", message="m", hint=None, version="1"))
    assert "599 Error" in page.text


@pytest.mark.parametrize(("percent", "value"), [(34, "34"), (-1, "0"), (250, "100"), (None, None)])
def test_progress_refreshes_by_itself_and_shows_how_far_it_is(percent: int | None, value: str | None) -> None:
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


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "<1s"),
        (999, "<1s"),
        (45 * SECOND, "45s"),
        (12 * MINUTE + 5 * SECOND, "12m 5s"),
        (3 * HOUR + 12 * MINUTE + 59 * SECOND, "3h 12m"),
        (HOUR + 5 * SECOND, "1h"),
        (40 * DAY + 2 * HOUR, "40d 2h"),
    ],
)
def test_durations_read_as_their_two_largest_units(milliseconds: int, expected: str) -> None:
    assert format_duration(milliseconds) == expected


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (-5 * MINUTE, "just now"),
        (59 * SECOND, "just now"),
        (MINUTE, "1 min ago"),
        (23 * HOUR, "23 h ago"),
        (59 * DAY, "59 d ago"),
        (90 * DAY, "3 mo ago"),
        (800 * DAY, "2 y ago"),
    ],
)
def test_ages_read_in_one_unit(age: int, expected: str) -> None:
    assert format_age(NOW - age, NOW) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (20 * 1024**3, "20 GiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_sizes_read_in_one_unit(size: int, expected: str) -> None:
    assert format_bytes(size) == expected


def test_unusual_session_names_are_shortened_in_the_middle() -> None:
    assert short_session_name("session_1") == "session_1"
    assert short_session_name("my-own-name-that-is-long") == "my-own-nam…t-is-long"


def test_an_unpaired_backtick_is_just_a_backtick() -> None:
    assert str(code_spans("a `b <i>")) == "a `b &lt;i&gt;"
