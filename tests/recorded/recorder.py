"""Runs real Ray with a workload, keeps what its live dashboard answered, and ends it.

The recording is a directory: `store` is what the collector kept, `live.json` what the dashboard said when the workload
had settled, shortly before the end.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from rayhistory.cli.record import Wish, recording
from rayhistory.layout import SessionRef
from rayhistory.settings import STORE_COMMANDS, resolve
from recorded.questions import Question, first_questions, later_questions
from recorded.rays import HERE, ray_command
from recorded.workloads import Workload, mixed

CLUSTER, VANISHED_CLUSTER = "recorded", "vanished"


class Answer(msgspec.Struct, frozen=True):
    """What the live dashboard said to one question."""

    question: Question
    status: int
    text: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)


class Recorded(msgspec.Struct, frozen=True):
    """A recording, and the session in it."""

    directory: Path
    ref: SessionRef
    answers: dict[str, Answer]

    @classmethod
    def load(cls, directory: Path) -> Self:
        ref, answers = msgspec.json.decode((directory / "live.json").read_bytes(), type=tuple[SessionRef, list[Answer]])
        return cls(directory, ref, {answer.question.name: answer for answer in answers})

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def live(self, path: str) -> Any:
        return self.answers[path].json

    @property
    def vanished(self) -> SessionRef:
        return SessionRef.checked(self.ref.namespace, VANISHED_CLUSTER, self.ref.session)


def record(directory: Path, python: str = HERE, workload: Workload = mixed) -> Recorded:
    """Fills the directory; what is there is complete, or was removed."""
    work = directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        asyncio.run(_record(work, python, workload))
        _add_vanished(work / "store")
        for name in ("store", "live.json"):
            (work / name).rename(directory / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Recorded.load(directory)


async def _record(directory: Path, python: str, workload: Workload) -> None:
    arguments = {"setting_local_storage_dir": str(directory / "store")}
    settings, _ = resolve(STORE_COMMANDS, arguments, {})
    wish = Wish([], settings, CLUSTER, num_cpus=4, ray_command=ray_command(python))
    async with recording(wish) as session:
        await workload(session.ray, python)
        await session.settle()
        answers = await _ask(session.ray.dashboard_url)
        (directory / "live.json").write_bytes(msgspec.json.encode((session.ref, answers)))


async def _ask(dashboard: str) -> list[Answer]:
    async with httpx.AsyncClient(base_url=dashboard, trust_env=False, timeout=60) as http:

        async def answer(question: Question) -> Answer:
            response = await http.request(question.method, question.uncached, headers=question.headers)
            return Answer(question, response.status_code, response.text)

        answers = [await answer(question) for question in first_questions()]
        known = {each.question.name: each.json for each in answers if each.status == 200}
        return answers + [await answer(question) for question in later_questions(known)]


def _add_vanished(store: Path) -> None:
    """The same session once more, under another cluster's name, as if its node had been lost: nothing says its end."""
    names = {CLUSTER: VANISHED_CLUSTER, f"default_{CLUSTER}": f"default_{VANISHED_CLUSTER}"}
    for path in sorted(store.rglob("*")):
        parts = path.relative_to(store).parts
        if not path.is_file() or not set(parts) & set(names):
            continue
        if path.name == "end.json" or "seals" in parts:
            continue
        copy = store.joinpath(*(names.get(part, part) for part in parts))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
