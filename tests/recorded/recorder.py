"""Runs real Ray with a workload, keeps what its live dashboard answered, and ends it.

The recording is a directory: `store` is what the collector kept, `live.json` what the dashboard said when the workload
had settled, shortly before the end.
"""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from rayhistory.cli import sample_job
from rayhistory.cli.record import Recording as Session
from rayhistory.cli.record import Wish, recording
from rayhistory.layout import SessionRef
from rayhistory.settings import STORE_COMMANDS, resolve
from recorded.questions import Question, first_questions, later_questions

CLUSTER, VANISHED_CLUSTER = "recorded", "vanished"
SAMPLE, FAILING, RUNNING = "sample-job", "failing-job", "running-job"
HOSTILE_ARGUMENT = "<script>document.title='owned'</script>"
SECRET = "s3cret-value"
HOSTILE_EVENT = "node <b onmouseover=\"document.title='owned'\">lost</b><script>document.title='owned'</script>"

_JOBS = Path(__file__).parent / "jobs"
_UNDER_WAY = "everything is under way"


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


def record(directory: Path) -> Recorded:
    """Fills the directory; what is there is complete, or was removed."""
    work = directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        asyncio.run(_record(work))
        _add_vanished(work / "store")
        for name in ("store", "live.json"):
            (work / name).rename(directory / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Recorded.load(directory)


async def _record(directory: Path) -> None:
    arguments = {"setting_local_storage_dir": str(directory / "store")}
    settings, _ = resolve(STORE_COMMANDS, arguments, {})
    sample = [sys.executable, sample_job.__file__]
    async with recording(Wish(sample, settings, CLUSTER, num_cpus=4)) as session:
        await _run_workload(session, sample)
        await session.settle()
        answers = await _ask(session.ray.dashboard_url)
        (directory / "live.json").write_bytes(msgspec.json.encode((session.ref, answers)))


async def _run_workload(session: Session, sample: list[str]) -> None:
    ray = session.ray
    # Ray's dashboard, like ours, reads all files of this name.
    (ray.session_dir / "logs" / "events" / "event_JOBS_hostile.log").write_bytes(_hostile_event() + b"\n")
    await ray.submit([sys.executable, str(_JOBS / "running.py")], RUNNING, metadata={"team": "watch"})
    await ray.submit(sample, SAMPLE, {"API_TOKEN": SECRET}, {"team": "training"})
    await ray.submit([sys.executable, str(_JOBS / "failing.py"), HOSTILE_ARGUMENT], FAILING)
    async for text in ray.follow_output(RUNNING):
        if _UNDER_WAY in text:
            break
    statuses = [(await ray.wait(job))["status"] for job in (SAMPLE, FAILING)]
    assert statuses == ["SUCCEEDED", "FAILED"]


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


def _hostile_event() -> bytes:
    return msgspec.json.encode(
        {
            "event_id": "ab" * 18,
            "source_type": "JOBS",
            "source_hostname": "host",
            "source_pid": 1,
            "message": HOSTILE_EVENT,
            "timestamp": str(int(time.time())),
            "severity": "ERROR",
            "label": "<i>label</i>",
            "custom_fields": {},
        }
    )
