"""The gaps of a session, as a page and as JSON."""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.gap_descriptions import describe
from rayhistory.gaps import GapCode
from rayhistory.server.app import create_app
from rayhistory.server.history_api.api_types import GapTotal, SessionGap, SessionGaps
from rayhistory.server.pages.gaps_page import group_gaps
from support.recorded_sample import REF, serving, settings_for, store_only_node

PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("gaps")) as client:
        client.get("api/jobs/")  # index the session before pages are opened
        yield client


def get_json(client: TestClient, path: str) -> dict[str, Any]:
    response = client.get(path)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def make_gap(code: GapCode, count: int = 1, place: str = "", detail: str = "") -> SessionGap:
    kind = describe(code)
    return SessionGap(code, count, place, detail, kind.summary(count), kind.meaning, kind.remedy, kind.is_loss)


def test_json_describes_every_gap(client: TestClient) -> None:
    body = get_json(client, "gaps.json")
    assert body == get_json(client, "api/history/gaps")
    assert GapCode.TASK_WITHOUT_DEFINITION in {gap["code"] for gap in body["gaps"]}
    for gap in body["gaps"]:
        kind = describe(gap["code"])
        assert set(gap) == {"code", "count", "place", "detail", "summary", "meaning", "remedy", "loss"}
        assert (gap["summary"], gap["meaning"]) == (kind.summary(gap["count"]), kind.meaning)
        assert (gap["remedy"], gap["loss"]) == (kind.remedy, kind.is_loss)


def test_gaps_page_shows_every_gap(client: TestClient) -> None:
    page = client.get("gaps", headers=PAGE)
    assert page.headers["content-type"].startswith("text/html")
    text = html.unescape(page.text)
    report = msgspec.convert(get_json(client, "api/history/gaps"), SessionGaps)
    for group in group_gaps(report):
        assert group.code in text
        assert group.summary in text
        assert group.meaning in text
    assert "How to fix" in text


def test_gaps_with_the_same_code_are_grouped_losses_first() -> None:
    truncated = [make_gap(GapCode.OBJECT_TRUNCATED, 1, f"key {number}", "cut") for number in range(150)]
    totals = {GapCode.EVENTS_LATE.value: GapTotal(1, 3), GapCode.OBJECT_TRUNCATED.value: GapTotal(150, 150)}
    report = SessionGaps([make_gap(GapCode.EVENTS_LATE, 3), *truncated], complete=False, totals=totals)
    first, second = group_gaps(report)
    assert (first.code, first.loss, first.summary) == (
        GapCode.OBJECT_TRUNCATED,
        True,
        describe(GapCode.OBJECT_TRUNCATED).summary(150),
    )
    assert (len(first.places), first.more_places, first.places[0].place) == (100, 50, "key 0")
    assert (second.code, second.loss, second.places) == (GapCode.EVENTS_LATE, False, [])


@pytest.mark.slow
def test_session_with_informational_gaps_is_complete(tmp_path: Path) -> None:
    """Ray reports no end of nodes: that is a note, and no loss."""
    settings = settings_for(tmp_path)
    store_only_node(settings)
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        gaps = get_json(client, "api/history/gaps")
        assert GapCode.NODE_OPEN_AT_SESSION_END in {gap["code"] for gap in gaps["gaps"]}
        assert (gaps["complete"], get_json(client, "api/history/overview")["gaps"]) == (True, 0)
        assert "Complete. The notes below are informational." in client.get("gaps", headers=PAGE).text


def test_session_with_losses_is_incomplete(client: TestClient) -> None:
    assert get_json(client, "api/history/gaps")["complete"] is False
    assert get_json(client, "api/history/overview")["gaps"] > 0
    page = client.get("gaps", headers=PAGE).text
    assert "Incomplete." in page
    assert "Complete." not in page


def test_gaps_page_of_an_unknown_session_gets_404(client: TestClient) -> None:
    response = client.get("http://testserver/s/default/unknown/latest/gaps", headers=PAGE)
    assert response.status_code == 404
    assert "Session not found" in response.text
    failed = client.get("http://testserver/s/default/unknown/latest/gaps.json")
    assert failed.json()["error"]["status"] == 404
