"""Sessions are found by the names that users write."""

import asyncio

import pytest

from rayhistory.api.session_names import FoundSession, find_session
from rayhistory.errors import SessionNotFound, UsageError

OLD, NEW = "session_2026-11-15_19-18-08_055078_15551", "session_2026-11-16_19-18-08_055078_15551"
SESSIONS = [
    (NEW, f"/s/default/train/{NEW}"),
    (OLD, f"/s/default/train/{OLD}"),
    (OLD, f"/s/team-a/shared/{OLD}"),
    (OLD, f"/s/team-b/shared/{OLD}"),
    (OLD, f"/s/default/train-2/{OLD}"),
]


async def list_sessions(name: str) -> list[tuple[str, str]]:
    return [session for session in SESSIONS if name in session[1]]


def found(name: str) -> FoundSession:
    return asyncio.run(find_session(name, list_sessions))


def test_name_of_a_cluster_means_its_newest_session() -> None:
    """The pages show just this name."""
    assert found("train") == FoundSession(f"/s/default/train/{NEW}/", is_choice=True)
    assert found("train@1794770300000").path == f"/s/default/train/{NEW}@1794770300000/"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("2026-11-16_19-18-08", f"/s/default/train/{NEW}/"),
        ("session_2026-11-16_19-18-08", f"/s/default/train/{NEW}/"),
        ("2026-11-16_19-18-08_055078@1794770300000", f"/s/default/train/{NEW}@1794770300000/"),
        ("team-b/shared/2026-11-15_19-18-08", f"/s/team-b/shared/{OLD}/"),
    ],
)
def test_session_is_found_by_the_time_that_pages_show(name: str, path: str) -> None:
    assert found(name) == FoundSession(path)


def test_short_name_of_several_sessions_is_refused() -> None:
    with pytest.raises(
        UsageError, match="4 sessions have the name 2026-11-15_19-18-08: use one of default/train/session_"
    ):
        found("2026-11-15_19-18-08")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "2026-11-16_19-18-09",
            f"no session '2026-11-16_19-18-09' in the store: did you mean {NEW} or {OLD}?",
        ),
        ("trai", "no session or cluster 'trai' in the store: did you mean train or train-2?"),
        ("nope", "no session or cluster 'nope' in the store: rayhistory sessions lists them"),
        ("No such!", "no session or cluster 'No such!' in the store: rayhistory sessions lists them"),
        (NEW.replace("16", "17"), f"no session '{NEW.replace('16', '17')}' in the store: did you mean {NEW} or {OLD}?"),
        ("default/trian", "the store has no session of default/trian: did you mean default/train or default/train-2?"),
        ("team-c/shared", "the store has no session of team-c/shared: did you mean team-b/shared or team-a/shared?"),
    ],
)
def test_unknown_name_gets_the_closest_names(name: str, error: str) -> None:
    with pytest.raises(SessionNotFound) as raised:
        found(name)
    assert str(raised.value) == error


def test_name_of_clusters_in_several_namespaces_is_refused() -> None:
    with pytest.raises(UsageError, match="2 namespaces have a cluster 'shared': use team-a/shared"):
        found("shared")


def test_error_of_an_unknown_cluster_without_similar_names_is_that_of_the_server() -> None:
    assert found("a/b") == FoundSession("/s/a/b/latest/")
