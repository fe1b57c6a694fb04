"""POST /v1/events with everything that can be wrong with a body: Ray must get its 200, and nothing good is lost."""

import asyncio
import errno
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayhistory.collector.app import make_app
from rayhistory.collector.block import Damage
from rayhistory.collector.ingest import Ingest, is_loopback
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.segment import records
from rayhistory.collector.setaside import SetAside
from rayhistory.collector.spool import Spool

SESSION = "session_2026-11-15_19-18-08_055078_15551"
GOOD = {"eventId": "good", "eventType": "X", "sessionName": SESSION}


class Receiver:
    """The real app on a real spool, called without a network."""

    def __init__(
        self,
        directory: Path,
        *,
        budget: int = 10**7,
        largest_body: int = 10**6,
        remote: bool = False,
        token: str = "",
    ) -> None:
        self.directory = directory
        self.metrics = Metrics()
        self.spool = Spool(directory, budget=budget, segment_size=10**6, segment_age=300)
        aside = SetAside(directory / "set-aside", self.metrics)
        self.ingest = Ingest(
            self.spool, aside, self.metrics, largest_body=largest_body, allow_remote=remote, token=token
        )
        self.app = make_app(self.ingest, self.metrics, lambda: None)

    async def post(self, body: bytes, peer: str = "127.0.0.1", authorization: str = "") -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=(peer, 1234))
        headers = {"Authorization": authorization} if authorization else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/events", content=body, headers=headers)

    def spooled(self) -> list[tuple[str, bytes]]:
        return [
            (category, line.rstrip(b"\n"))
            for path in sorted(self.directory.rglob("*.wal"))
            for category, line in records(path, Damage())
        ]

    def aside(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.directory.joinpath("set-aside").glob("*"))]


def run(directory: Path, use: Callable[[Receiver], Awaitable[None]], **options: Any) -> Receiver:
    async def session() -> Receiver:
        receiver = Receiver(directory, **options)
        await receiver.spool.open()
        try:
            await use(receiver)
        finally:
            await receiver.spool.shut()
        return receiver

    return asyncio.run(session())


def post(directory: Path, body: bytes, **options: Any) -> tuple[Receiver, int]:
    statuses: list[int] = []

    async def use(receiver: Receiver) -> None:
        statuses.append((await receiver.post(body)).status_code)

    return run(directory, use, **options), statuses[0]


def test_a_batch_becomes_one_record_per_event(tmp_path: Path) -> None:
    """The events' own bytes are kept: no number goes through a float."""
    body = f'[{{"sessionName": "{SESSION}", "n": 12345678901234567890.10}}, {json.dumps(GOOD)}]'.encode()
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert receiver.spooled() == [
        ("node_events", f'{{"sessionName": "{SESSION}", "n": 12345678901234567890.10}}'.encode()),
        ("node_events", json.dumps(GOOD).encode()),
    ]


def test_a_single_object_is_a_batch_of_one(tmp_path: Path) -> None:
    """An object instead of an array is understood."""
    receiver, status = post(tmp_path, json.dumps(GOOD).encode())
    assert (status, len(receiver.spooled())) == (200, 1)


def test_pretty_printed_events_stay_on_one_line(tmp_path: Path) -> None:
    """Line breaks between tokens would break the records."""
    receiver, status = post(tmp_path, json.dumps([GOOD, GOOD], indent=2).replace("\n", "\r\n").encode())
    assert status == 200
    assert [json.loads(line) for _, line in receiver.spooled()] == [GOOD, GOOD]


@pytest.mark.parametrize(
    "body",
    [
        b"hello",
        b"[1, 2",
        b'[{"a": }]',
        b"\xff\xfe",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'[{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"]",
        b'[{"sessionName": "' + b"x" * 100 + b"\x00" + b'"}]',
        b'[{"a": "line\nbreak"}]',
        b'{"sessionName"',
    ],
)
def test_a_body_that_is_not_json_is_set_aside_and_acknowledged(tmp_path: Path, body: bytes) -> None:
    """Otherwise Ray would send it for ever, and everything behind it would wait."""
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert receiver.spooled() == []
    assert receiver.aside() == [body]


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b""])
def test_a_body_with_nothing_in_it_is_acknowledged(tmp_path: Path, body: bytes) -> None:
    """There is nothing to keep of it."""
    receiver, status = post(tmp_path, body)
    assert (status, receiver.spooled(), receiver.aside()) == (200, [], [])


@pytest.mark.parametrize(
    "bad",
    [
        b"3",
        b'"text"',
        b"null",
        b"[]",
        b"{}",
        b'{"sessionName": "../../../etc"}',
        b'{"sessionName": "%b", "x": "\xff"}' % SESSION.encode(),
        b'{"sessionName": {"deep": %b}}' % (b"[" * 50 + b"]" * 50),
        pytest.param(b'{"sessionName": "x", "deep": %b}' % (b"[" * 5000 + b"]" * 5000), id="5,000 deep"),
    ],
)
def test_a_bad_element_does_not_harm_its_neighbours(tmp_path: Path, bad: bytes) -> None:
    """It is set aside alone."""
    good = json.dumps(GOOD).encode()
    receiver, status = post(tmp_path, b"[%b, %b, %b]" % (good, bad, good))
    assert status == 200
    assert receiver.spooled() == [("node_events", good)] * 2
    assert receiver.aside() == [bad]


def test_elements_too_deep_to_be_read_are_set_aside_alone(tmp_path: Path) -> None:
    """Each is counted, and brackets and breaks elsewhere do not confuse what is told by brackets."""
    good = {**GOOD, "odd": 'a "]}, \\ [{', "list": [[1, 2], {}]}
    deep = b"[" * 5000 + b'"],", 1' + b"]" * 5000
    body = b" [%b,\n %b ,%b,\n%b]\n" % (json.dumps(good, indent=1).encode(), deep, deep, json.dumps(GOOD).encode())
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert [json.loads(line) for _, line in receiver.spooled()] == [good, GOOD]
    assert receiver.aside() == [deep, deep]


def test_a_body_of_many_jobs_and_sessions_is_acked_and_bounded(tmp_path: Path) -> None:
    """A job becomes an object and a session a directory: all events of the first are kept, of the others some."""

    def event(number: int, session: str = SESSION) -> dict[str, Any]:
        return {"eventId": number, "sessionName": session, "taskDefinitionEvent": {"jobId": f"{number:08x}"}}

    invented = [event(number, f"{SESSION}-{number}") for number in range(100)]
    body = json.dumps([*map(event, range(20_000)), *invented]).encode()
    receiver, status = post(tmp_path, body, largest_body=10**7)
    assert status == 200
    kept = [(category, json.loads(line)) for category, line in receiver.spooled()]
    assert sorted(each["eventId"] for _, each in kept if each["sessionName"] == SESSION) == list(range(20_000))
    assert 100 < len({category for category, _ in kept}) <= 256
    assert len(list(tmp_path.glob("session_*"))) == 16
    assert receiver.metrics.bad == 20_100 - len(kept) == 85
    assert b'set_aside_total{reason="too many sessions"} 85.0' in receiver.metrics.exposition()


def test_sessions_without_end_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Post by post: what is on the disk, and what is remembered of them, is bounded; the real one goes on."""
    monkeypatch.setattr("rayhistory.collector.spool._MOST_SESSIONS", 5)
    monkeypatch.setattr("rayhistory.collector.ingest._MOST_SESSIONS", 3)

    async def use(receiver: Receiver) -> None:
        for number in range(20):
            for session in (SESSION, f"{SESSION}-{number}"):
                assert (await receiver.post(json.dumps([{**GOOD, "sessionName": session}]).encode())).status_code == 200
        assert receiver.ingest.has_heard_of(SESSION)
        assert len(receiver.ingest._heard) == 3

    receiver = run(tmp_path, use)
    assert len(list(tmp_path.glob("session_*"))) == 5
    assert len(receiver.spooled()) == 24
    assert receiver.metrics.bad == 16


def test_a_body_that_is_too_large_is_set_aside_and_acknowledged(tmp_path: Path) -> None:
    """Its beginning is kept: memory and disk are bounded."""
    receiver, status = post(tmp_path, b"[" + b" " * 5000 + b"]", largest_body=1000)
    assert (status, receiver.spooled()) == (200, [])
    assert all(len(kept) <= 1000 for kept in receiver.aside())


def test_what_is_set_aside_is_bounded_in_number(tmp_path: Path) -> None:
    """A sender of garbage cannot fill the disk with files."""
    receiver, status = post(tmp_path, b"[" + b",".join([b"1"] * 1500) + b"]")
    assert status == 200
    assert len(receiver.aside()) == 1000
    assert receiver.metrics.bad == 1500


def test_a_spent_disk_budget_is_the_only_reason_to_refuse(tmp_path: Path) -> None:
    """503 with Retry-After, and taken again as soon as there is room."""

    async def use(receiver: Receiver) -> None:
        body = json.dumps([{**GOOD, "pad": random.Random(1).randbytes(300).hex()}]).encode()
        assert (await receiver.post(body)).status_code == 200
        refused = await receiver.post(body)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        await receiver.spool.rotate()
        for segment in receiver.spool.segments():
            await receiver.spool.discard(segment, 1)
        assert (await receiver.post(body)).status_code == 200

    receiver = run(tmp_path, use, budget=1200)
    assert b'refused_total{reason="spool"} 1.0' in receiver.metrics.exposition()


def test_other_machines_are_refused_unless_allowed(tmp_path: Path) -> None:
    """Ray posts from the same machine; anybody else could forge history."""

    async def use(receiver: Receiver) -> None:
        body = json.dumps([GOOD]).encode()
        assert (await receiver.post(body, "10.1.2.3")).status_code == 403
        assert (await receiver.post(body, "::1")).status_code == 200

    async def use_open(receiver: Receiver) -> None:
        assert (await receiver.post(json.dumps([GOOD]).encode(), "10.1.2.3")).status_code == 200

    run(tmp_path / "closed", use)
    run(tmp_path / "open", use_open, remote=True)


def test_a_token_is_asked_for_when_there_is_one(tmp_path: Path) -> None:
    """Without it, and with a wrong one, nothing is read."""

    async def use(receiver: Receiver) -> None:
        body = json.dumps([GOOD]).encode()
        for wrong in ("", "Bearer", "Bearer other", "secret", "Basic secret"):
            assert (await receiver.post(body, authorization=wrong)).status_code == 401
        assert (await receiver.post(body, authorization="Bearer secret")).status_code == 200

    receiver = run(tmp_path, use, token="secret")  # noqa: S106
    assert len(receiver.spooled()) == 1


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is counted; a sender that lives sends it again."""
    monkeypatch.setattr("rayhistory.collector.ingest._SLOWEST_BODY", 0.05)

    async def use(receiver: Receiver) -> None:
        async def slowly() -> AsyncIterator[bytes]:
            yield b"["
            await asyncio.sleep(5)
            yield b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/v1/events", content=slowly())).status_code == 408

    receiver = run(tmp_path, use)
    assert b'refused_total{reason="slow"} 1.0' in receiver.metrics.exposition()


def test_slow_large_senders_do_not_keep_others_waiting(tmp_path: Path) -> None:
    """Nor do those that do not say how much they send: a large batch is taken while another is on its way."""

    async def use(receiver: Receiver) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"[" + b" " * (9 << 20)
            begun.set()
            await go_on.wait()
            yield b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            slow = asyncio.create_task(client.post("/v1/events", content=slowly()))
            await begun.wait()
            large = b"[%b%b]" % (b" " * (9 << 20), json.dumps(GOOD).encode())
            assert (await receiver.post(large)).status_code == 200
            go_on.set()
            assert (await slow).status_code == 200

    receiver = run(tmp_path, use, largest_body=20 << 20, budget=10**8)
    assert len(receiver.spooled()) == 1


def test_when_memory_is_short_a_slow_body_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones wait for each other, but not for a sender that does not go on."""
    monkeypatch.setattr("rayhistory.collector.ingest._LARGE", 1000)
    monkeypatch.setattr("rayhistory.collector.ingest._MOST_OF_LARGE", 1000)
    monkeypatch.setattr("rayhistory.collector.ingest._SLOWEST_BODY", 3600.0)
    monkeypatch.setattr("rayhistory.collector.arriving._LONGEST_WAIT_FOR_ONE", 0.1)

    async def use(receiver: Receiver) -> None:
        begun = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"[" + b" " * 600_000
            begun.set()
            await asyncio.Event().wait()

        async def piece_by_piece() -> AsyncIterator[bytes]:
            yield b"["
            for _ in range(100):
                yield b" " * 5000
            yield json.dumps(GOOD).encode() + b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
        ):
            slow = asyncio.create_task(client.post("/v1/events", content=slowly()))
            await begun.wait()
            assert (await receiver.post(json.dumps([GOOD]).encode())).status_code == 200
            assert not slow.done()
            others = [client.post("/v1/events", content=piece_by_piece()) for _ in range(5)]
            assert [each.status_code for each in await asyncio.gather(*others)] == [200] * 5
            assert (await slow).status_code == 408
            assert receiver.ingest._arriving._held == 0

    assert len(run(tmp_path, use).spooled()) == 6


def test_a_failing_disk_is_answered_503_and_recovered_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC and EIO alike: not acknowledged, said, and taken when the disk works again."""

    async def use(receiver: Receiver) -> None:
        body = json.dumps([GOOD]).encode()
        for number in (errno.ENOSPC, errno.EIO):
            with monkeypatch.context() as patch:

                def fails(_: int, number: int = number) -> None:
                    raise OSError(number, os.strerror(number))

                patch.setattr(os, "fdatasync", fails)
                answer = await receiver.post(body)
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
                assert os.strerror(number) in answer.text
                assert not receiver.spool.writable
            await receiver.spool.probe()
            assert receiver.spool.writable
            assert (await receiver.post(body)).status_code == 200

    receiver = run(tmp_path, use)
    assert len(receiver.spooled()) == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("localhost.evil", False), ("", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_address(host: str, expected: bool) -> None:
    """In both families, and in the mixed form."""
    assert is_loopback(host) is expected
