"""The commands of docs/how-to/archive.md work, with stores and URLs of the test."""

import re
import shlex
from pathlib import Path

from rayhistory.sessions import SessionRef
from support import archived_sessions
from support.archived_sessions import OLD, StoreLocation, rayhistory, session_objects
from support.dashboard_of_running_cluster import RunningClusterDashboard
from support.session_without_collector import UncollectedSession

DOCUMENT = Path(__file__).parents[2] / "docs/how-to/archive.md"
SESSION = "session_2026-11-15_19-18-08_055078_15551"


def documented_commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_documented_commands_work(uncollected: UncollectedSession, tmp_path: Path, running_cluster: str) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    location.put(session_objects(location.layout, SessionRef("default", "recorded", OLD)))
    replacements = {
        "s3://archive/ray": (tmp_path / "archive").as_uri(), "s3://plain/ray": (tmp_path / "plain").as_uri(),
        f"/tmp/ray/{SESSION}": str(uncollected.on_disk), "http://127.0.0.1:8265": running_cluster,
    }  # fmt: skip
    outputs = []
    for program, *argv in documented_commands():
        assert program == "rayhistory"
        done = rayhistory(
            location, *(replacements.get(word, word) for word in argv), RAY_AUTH_TOKEN=RunningClusterDashboard.token
        )
        assert done.returncode == 0, done.stderr
        outputs.append((argv[0], done.stdout))
    assert [name for name, _ in outputs] == [
        "copy", "copy", "import-dir", "snapshot", "pin", "retention", "retention", "unpin",
    ]  # fmt: skip
    for _, output in outputs[5:7]:
        assert f"default/recorded/{OLD}  keep: pinned" in output
        assert "0 of 3 sessions" in output
    assert clusters(StoreLocation((tmp_path / "archive").as_uri())) == clusters(
        StoreLocation((tmp_path / "plain").as_uri())
    )
    assert clusters(location) == {"recorded", "imported", "captured"}


def clusters(location: StoreLocation) -> set[str]:
    prefix = f"{location.layout.metadata_prefix()}/raycluster/default_"
    return {key.removeprefix(prefix).partition("/")[0] for key in location.objects() if key.startswith(prefix)}
