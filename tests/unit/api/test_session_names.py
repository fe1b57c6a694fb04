"""Sessions are found by the names that users write."""

import asyncio

import pytest

from rayhistory.api.session_names import FoundSession, find_session
from rayhistory.errors import UsageError

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
    ("name", "error"),
    [("shared", "2 namespaces have a cluster 'shared': use team-a/shared"), ("trai", "invalid session name: 'trai'")],
)
def test_name_that_does_not_mean_one_cluster_is_refused(name: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        found(name)
    assert error in str(raised.value)
