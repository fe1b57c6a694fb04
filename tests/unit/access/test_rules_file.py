"""The access file: parsing, errors and reloading."""

import re
from pathlib import Path

import pytest

from rayhistory.access.rules_file import digest, read_rules
from rayhistory.access.visitor import namespace_matches
from rayhistory.errors import InvalidSetting
from support.recorded_sample import REF
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, write_access_file

PROFILING = f"{REF.url}api/profiling_enabled"


def test_access_file_is_reloaded_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        write_access_file(tmp_path, "this is no rule\n")
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        assert "access file is invalid, keeping the previous rules" in caplog.messages
        write_access_file(tmp_path, f"token bob {digest('another-token-of-bob')} team-*,default # comment\n")
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 403
        clusters = client.get("/clusters", headers=bearer("another-token-of-bob")).json()
        assert {cluster["namespace"] for cluster in clusters} == {"default", "team-x"}


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "robot x *": "'robot' is not token, user or group",
        "token ada short *": "at least 16 characters",
        "token ada": "use: token NAME TOKEN NAMESPACES",
        "token ada sha256:ABC default": "64 lower-case hexadecimal digits",
        f"token a {ALLOWED_TOKEN} x\ntoken b {ALLOWED_TOKEN} y": "line 2: token is already used by another line",
        "user ada": "use: user NAME NAMESPACES",
        "user": "use: token NAME TOKEN NAMESPACES, or user|group",
        'group "open default': "No closing quotation",
        "user ada Default": "lower-case",
        "user ada default,": "'' is not a valid namespace",
        "user ada a*b": "lower-case",
    }.items(),
)
def test_invalid_rule_is_reported(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        read_rules(Path(write_access_file(tmp_path, text)))


def test_namespace_prefix_ends_with_a_star() -> None:
    assert namespace_matches("team-a", ["team-*"])
    assert namespace_matches("anything", ["*"])
    assert not namespace_matches("team-a", ["team", "team-", "eam-*", "*-a"])
    assert not namespace_matches("default", [])
