"""The commands in docs/keeping.md work as they stand there, on stores and addresses of our own."""

import re
import shlex
from pathlib import Path

from test_snapshot import Double, double  # noqa: F401 - a fixture

import kept
from kept import OLD, Place, rayhistory, session_objects
from plainsession import PlainSession
from rayhistory.layout import SessionRef

DOCUMENT = Path(__file__).parents[2] / "docs/keeping.md"
SESSION = "session_2026-11-15_19-18-08_055078_15551"


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_command_does_what_it_says(plain: PlainSession, tmp_path: Path, double: str) -> None:  # noqa: F811
    place = kept.directory(tmp_path / "store")
    place.put(session_objects(place.layout, SessionRef("default", "recorded", OLD)))
    real = {
        "s3://archive/ray": (tmp_path / "archive").as_uri(), "s3://plain/ray": (tmp_path / "plain").as_uri(),
        f"/tmp/ray/{SESSION}": str(plain.on_disk), "http://127.0.0.1:8265": double,
    }  # fmt: skip
    said = []
    for program, *argv in commands():
        assert program == "rayhistory"
        done = rayhistory(place, *(real.get(word, word) for word in argv), RAY_AUTH_TOKEN=Double.token)
        assert done.returncode == 0, done.stderr
        said.append((argv[0], done.stdout))
    assert [name for name, _ in said] == [
        "copy", "copy", "import-dir", "snapshot", "pin", "retention", "retention", "unpin",
    ]  # fmt: skip
    for _, told in said[5:7]:
        assert f"default/recorded/{OLD}  stays: it is pinned" in told
        assert "0 of 3 sessions" in told
    assert clusters(Place((tmp_path / "archive").as_uri())) == clusters(Place((tmp_path / "plain").as_uri()))
    assert clusters(place) == {"recorded", "found", "looked"}


def clusters(place: Place) -> set[str]:
    prefix = f"{place.layout.metadata_prefix()}/raycluster/default_"
    return {key.removeprefix(prefix).partition("/")[0] for key in place.objects() if key.startswith(prefix)}
