"""Runs real Ray with a workload, keeps what its live dashboard answered, and ends it.

The recording is a directory: `store` is what the collector kept, `live.json` what the dashboard said when the workload
had settled, shortly before the end.
"""

import asyncio
import fcntl
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from rayhistory.cli.record import Wish, recording
from rayhistory.layout import SessionRef
from rayhistory.rayenv import Version, parse_version
from rayhistory.settings import STORE_COMMANDS, resolve
from recorded import rays
from recorded.commands import Call, asked, calls
from recorded.questions import LISTS, Question, everything, first_questions, later_questions, library_questions
from recorded.rays import HERE
from recorded.workloads import Workload, mixed

CLUSTER, VANISHED_CLUSTER = "recorded", "vanished"
_UNTIL_TOLD = 5.0
"""Seconds after which Ray lists a task that has just run."""


class Answer(msgspec.Struct, frozen=True):
    """What the live dashboard said to one question."""

    question: Question
    status: int
    text: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)


class Printed(msgspec.Struct, frozen=True):
    """What one of Ray's own clients gave."""

    call: Call
    answer: Any


class Recorded(msgspec.Struct, frozen=True):
    """A recording, and the session in it."""

    directory: Path
    ref: SessionRef
    answers: dict[str, Answer]
    printed: list[Printed]

    def __repr__(self) -> str:
        return f"Recorded({self.directory})"  # and not all that is in it, as pytest would have it

    @classmethod
    def load(cls, directory: Path) -> Self:
        kept = tuple[SessionRef, list[Answer], list[Printed]]
        ref, answers, printed = msgspec.json.decode((directory / "live.json").read_bytes(), type=kept)
        return cls(directory, ref, {answer.question.name: answer for answer in answers}, printed)

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def live(self, path: str) -> Any:
        return self.answers[path].json

    @property
    def version(self) -> Version:
        return parse_version(self.live("/api/version")["ray_version"])

    @property
    def vanished(self) -> SessionRef:
        return SessionRef.checked(self.ref.namespace, VANISHED_CLUSTER, self.ref.session)


Recorder = Callable[[Path, str], None]
"""Fills a directory with a recording of the Ray of an interpreter."""


def on_one_node(workload: Workload) -> Recorder:
    @functools.wraps(workload)
    def fill(directory: Path, python: str) -> None:
        asyncio.run(_record(directory, python, workload))

    return fill


MIXED = on_one_node(mixed)


def recorded_once(
    directory: Path, python: str = HERE, recorder: Recorder = MIXED, kept: Path | None = None
) -> Recorded:
    """A copy of a recording, which is made when it is not where they are kept: RAYHISTORY_TEST_RECORDING names a
    directory that keeps them for the next run."""
    kept = Path(os.environ.get("RAYHISTORY_TEST_RECORDING") or kept or directory / "original")
    source = kept / f"{rays.name(python)}-{recorder.__name__}"
    source.mkdir(parents=True, exist_ok=True)
    with (source / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: what it makes is taken
        original = Recorded.load(source) if (source / "live.json").exists() else record(source, python, recorder)
    # Servers write indexes into the store: each run begins without.
    shutil.copytree(original.store, directory / "store")
    shutil.copy2(source / "live.json", directory)
    return Recorded.load(directory)


def record(directory: Path, python: str, recorder: Recorder) -> Recorded:
    """Fills the directory; what is there is complete, or was removed."""
    work = directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        recorder(work, python)
        _add_vanished(work / "store")
        for name in ("store", "live.json"):
            (work / name).rename(directory / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Recorded.load(directory)


async def _record(directory: Path, python: str, workload: Workload) -> None:
    arguments = {"setting_local_storage_dir": str(directory / "store")}
    settings, _ = resolve(STORE_COMMANDS, arguments, {})
    wish = Wish([], settings, CLUSTER, num_cpus=4, ray_command=rays.ray_command(python))
    async with recording(wish) as session:
        await workload(session.ray, python)
        await session.settle()
        _check_export(session.ray.session_dir)
        answers = await _asked(session.ray.dashboard_url)
        printed = await asyncio.to_thread(_print, session.ray.dashboard_url, python, answers)
        (directory / "live.json").write_bytes(msgspec.json.encode((session.ref, answers, printed)))


def _check_export(session: Path) -> None:
    """Ray waits for half a minute for its own agent, and then does without: no history can be had of that."""
    said = session / "logs" / "gcs_server.err"
    assert not said.exists() or "will not be exported" not in said.read_text(), "the machine is too busy for Ray"


async def ask(dashboard: str) -> bytes:
    """All answers, for somebody who asks from elsewhere."""
    return msgspec.json.encode(await _asked(dashboard))


async def _asked(dashboard: str) -> list[Answer]:
    async with httpx.AsyncClient(base_url=dashboard, trust_env=False, timeout=60) as http:

        async def answer(question: Question) -> Answer:
            response = await http.request(question.method, question.uncached, headers=question.headers)
            return Answer(question, response.status_code, response.text)

        there = {path: (await answer(Question(path))).json for path in ("/logical/actors", "/api/jobs/")}
        answers = [await answer(question) for question in library_questions(there)]
        if answers:
            await asyncio.sleep(_UNTIL_TOLD)
        answers += [await answer(question) for question in first_questions()]
        known = {each.question.name: each.json for each in answers if each.status == 200}
        return answers + [await answer(question) for question in later_questions(known)]


def _print(dashboard: str, python: str, answers: list[Answer]) -> list[Printed]:
    given = {answer.question.name: answer for answer in answers}
    asking = list(calls({kind: given[everything(kind)].json["data"]["result"]["result"] for kind in LISTS}))
    printed = asked(python, *((dashboard, call) for call in asking))
    return [Printed(call, answer) for call, answer in zip(asking, printed, strict=True)]


def _add_vanished(store: Path) -> None:
    """The same session once more, under another cluster's name, as if its node had been lost: nothing says its end."""
    names = {CLUSTER: VANISHED_CLUSTER, f"default_{CLUSTER}": f"default_{VANISHED_CLUSTER}"}
    for path in sorted(store.rglob("*")):
        parts = path.relative_to(store).parts
        if not path.is_file() or not set(parts) & set(names):
            continue
        if "seals" in parts:
            continue
        copy = store.joinpath(*(names.get(part, part) for part in parts))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "end.json":  # the last sign of life is all that there is of it
            copy = copy.with_name("alive")
            copy.touch()
            shutil.copystat(path, copy)
        else:
            shutil.copy2(path, copy)
