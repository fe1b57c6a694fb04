"""Session paths and KubeRay's cookies are parsed into a selection."""

import pytest

from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.sessions.selection import Selection, parse_session_path, selection_from_cookies

SESSION = "session_2026-11-15_19-18-08_055078_15551"
AS_OF_MS = 1794770288000


@pytest.mark.parametrize(
    ("path", "selection", "rest"),
    [
        (f"default/sample/{SESSION}/api/v0/tasks", Selection("default", "sample", SESSION), "api/v0/tasks"),
        ("default/sample/latest/", Selection("default", "sample", "latest"), ""),
        ("default/sample/live", Selection("default", "sample", "live"), None),
        ("default/~rayjob/nightly/x", Selection("default", "nightly", "latest", "rayjob"), "x"),
        (f"default/~RayService/web/{SESSION}/", Selection("default", "web", SESSION, "rayservice"), ""),
    ],
)
def test_session_path_is_parsed(path: str, selection: Selection, rest: str | None) -> None:
    assert parse_session_path(path) == (selection, rest)


@pytest.mark.parametrize(
    "as_of", [str(AS_OF_MS), "2026-11-15T19:18:08Z", "2026-11-15T19:18:08", "2026-11-15T20:18:08+01:00"]
)
def test_as_of_time_without_a_zone_is_utc(as_of: str) -> None:
    selection, _ = parse_session_path(f"default/sample/{SESSION}@{as_of}/")
    assert selection.as_of_ms == AS_OF_MS


def test_as_of_time_before_1970_is_zero() -> None:
    assert parse_session_path(f"default/sample/{SESSION}@1960-01-01/")[0].as_of_ms == 0


@pytest.mark.parametrize(
    "path",
    ["", "default", "default/sample", "Default/sample/latest/", "default/~raycron/x/", "default/~rayjob",
     f"default/sample/{SESSION}@soon/", "default/../latest/"],
)  # fmt: skip
def test_invalid_session_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        parse_session_path(path)


def test_invalid_session_name_is_not_found() -> None:
    with pytest.raises(SessionNotFound):
        parse_session_path("default/sample/session_x/")


def test_cookies_select_a_session() -> None:
    cookies = {"cluster_name": "sample", "cluster_namespace": "default", "session_name": SESSION}
    assert selection_from_cookies(cookies) == Selection("default", "sample", SESSION, from_cookies=True)
    assert selection_from_cookies({**cookies, "session_name": ""}) is None
    with pytest.raises(UsageError):
        selection_from_cookies({**cookies, "session_name": "session_x"})
