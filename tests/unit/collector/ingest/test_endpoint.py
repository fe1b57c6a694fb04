"""POST /v1/events with every kind of malformed body: Ray gets its 200, and valid events are stored."""

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
from rayhistory.collector.ingest.endpoint import IngestEndpoint, is_loopback
from rayhistory.collector.spool.block import Damage
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.quarantine import QUARANTINE_DIR, Quarantine
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.telemetry import Telemetry
from support.spool_segments import read_lines

SESSION = "session_2026-11-15_19-18-08_055078_15551"
EVENT = {"eventId": "valid", "eventType": "X", "sessionName": SESSION}


class Receiver:
    """The real application on a real spool, called without a network."""

    def __init__(
        self,
        directory: Path,
        *,
        budget: int = 10**7,
        max_body_bytes: int = 10**6,
        remote: bool = False,
        token: str = "",
    ) -> None:
        self.directory = directory
        self.telemetry = Telemetry()
        self.spool = Spool(PrivateDirectory(directory), budget=budget, segment_size=10**6, segment_age=300)
        quarantine = Quarantine(self.spool.directory.folder(QUARANTINE_DIR), self.telemetry)
        self.ingest = IngestEndpoint(
            self.spool, quarantine, self.telemetry, max_body_bytes=max_body_bytes, allow_remote=remote, token=token
        )
        self.app = make_app(self.ingest, self.telemetry, lambda: None)

    async def post(self, body: bytes, peer: str = "127.0.0.1", authorization: str = "") -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=(peer, 1234))
        headers = {"Authorization": authorization} if authorization else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/events", content=body, headers=headers)

    def spooled(self) -> list[tuple[str, bytes]]:
        return [
            (category, line.rstrip(b"\n"))
            for path in sorted(self.directory.rglob("*.wal"))
            for category, line in read_lines(path, Damage())
        ]

    def quarantined(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.directory.joinpath(QUARANTINE_DIR).glob("*"))]


def run(directory: Path, scenario: Callable[[Receiver], Awaitable[None]], **options: Any) -> Receiver:
    async def main() -> Receiver:
        receiver = Receiver(directory, **options)
        await receiver.spool.open()
        try:
            await scenario(receiver)
        finally:
            await receiver.spool.close()
        return receiver

    return asyncio.run(main())


def post(directory: Path, body: bytes, **options: Any) -> tuple[Receiver, int]:
    statuses: list[int] = []

    async def scenario(receiver: Receiver) -> None:
        statuses.append((await receiver.post(body)).status_code)

    return run(directory, scenario, **options), statuses[0]


def test_batch_becomes_one_line_per_event(tmp_path: Path) -> None:
    """The bytes of events are stored unchanged: no number is converted to a float."""
    body = f'[{{"sessionName": "{SESSION}", "n": 12345678901234567890.10}}, {json.dumps(EVENT)}]'.encode()
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert receiver.spooled() == [
        ("node_events", f'{{"sessionName": "{SESSION}", "n": 12345678901234567890.10}}'.encode()),
        ("node_events", json.dumps(EVENT).encode()),
    ]


def test_single_object_is_a_batch_of_one(tmp_path: Path) -> None:
    receiver, status = post(tmp_path, json.dumps(EVENT).encode())
    assert (status, len(receiver.spooled())) == (200, 1)


def test_pretty_printed_events_stay_on_one_line(tmp_path: Path) -> None:
    """A line break inside an event would split it into two lines."""
    receiver, status = post(tmp_path, json.dumps([EVENT, EVENT], indent=2).replace("\n", "\r\n").encode())
    assert status == 200
    assert [json.loads(line) for _, line in receiver.spooled()] == [EVENT, EVENT]


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
def test_body_that_is_not_json_is_quarantined_and_acknowledged(tmp_path: Path, body: bytes) -> None:
    """Otherwise Ray would send it forever, and all later batches would wait."""
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert receiver.spooled() == []
    assert receiver.quarantined() == [body]


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b""])
def test_empty_body_is_acknowledged(tmp_path: Path, body: bytes) -> None:
    receiver, status = post(tmp_path, body)
    assert (status, receiver.spooled(), receiver.quarantined()) == (200, [], [])


@pytest.mark.parametrize(
    "malformed",
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
def test_only_the_malformed_element_of_a_batch_is_quarantined(tmp_path: Path, malformed: bytes) -> None:
    event = json.dumps(EVENT).encode()
    receiver, status = post(tmp_path, b"[%b, %b, %b]" % (event, malformed, event))
    assert status == 200
    assert receiver.spooled() == [("node_events", event)] * 2
    assert receiver.quarantined() == [malformed]


def test_only_elements_nested_too_deeply_are_quarantined(tmp_path: Path) -> None:
    """Brackets and line breaks inside strings and other elements do not confuse the split."""
    valid = {**EVENT, "text": 'a "]}, \\ [{', "list": [[1, 2], {}]}
    deep = b"[" * 5000 + b'"],", 1' + b"]" * 5000
    body = b" [%b,\n %b ,%b,\n%b]\n" % (json.dumps(valid, indent=1).encode(), deep, deep, json.dumps(EVENT).encode())
    receiver, status = post(tmp_path, body)
    assert status == 200
    assert [json.loads(line) for _, line in receiver.spooled()] == [valid, EVENT]
    assert receiver.quarantined() == [deep, deep]


@pytest.mark.slow
def test_body_with_too_many_jobs_and_sessions_is_acked_and_bounded(tmp_path: Path) -> None:
    """All events of the real session are stored; jobs share categories, and most invented sessions are quarantined."""

    def event(number: int, session: str = SESSION) -> dict[str, Any]:
        return {"eventId": number, "sessionName": session, "taskDefinitionEvent": {"jobId": f"{number:08x}"}}

    invented = [event(number, f"{SESSION}-{number}") for number in range(100)]
    body = json.dumps([*map(event, range(20_000)), *invented]).encode()
    receiver, status = post(tmp_path, body, max_body_bytes=10**7)
    assert status == 200
    stored = [(category, json.loads(line)) for category, line in receiver.spooled()]
    assert sorted(each["eventId"] for _, each in stored if each["sessionName"] == SESSION) == list(range(20_000))
    assert 100 < len({category for category, _ in stored}) <= 256
    assert len(list(tmp_path.glob("session_*"))) == 16
    assert receiver.telemetry.quarantined_count == 20_100 - len(stored) == 85
    assert b'quarantined_total{reason="too_many_sessions"} 85.0' in receiver.telemetry.exposition()


def test_invented_sessions_over_the_limit_are_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions on disk and in memory are bounded over many posts; the real session is not affected."""
    monkeypatch.setattr("rayhistory.collector.spool.spool._MAX_SESSIONS", 5)
    monkeypatch.setattr("rayhistory.collector.ingest.endpoint._MAX_REMEMBERED_SESSIONS", 3)

    async def scenario(receiver: Receiver) -> None:
        for number in range(20):
            for session in (SESSION, f"{SESSION}-{number}"):
                assert (
                    await receiver.post(json.dumps([{**EVENT, "sessionName": session}]).encode())
                ).status_code == 200
        assert receiver.ingest.has_events_of(SESSION)
        assert len(receiver.ingest._reported_nodes) == 3

    receiver = run(tmp_path, scenario)
    assert len(list(tmp_path.glob("session_*"))) == 5
    assert len(receiver.spooled()) == 24
    assert receiver.telemetry.quarantined_count == 16


def test_sample_of_a_body_that_is_too_large_is_quarantined_and_acknowledged(tmp_path: Path) -> None:
    """Memory and disk usage stay bounded."""
    receiver, status = post(tmp_path, b"[" + b" " * 5000 + b"]", max_body_bytes=1000)
    assert (status, receiver.spooled()) == (200, [])
    assert all(len(sample) <= 1000 for sample in receiver.quarantined())


def test_number_of_quarantined_files_is_bounded(tmp_path: Path) -> None:
    """A client that sends garbage cannot fill the disk with files."""
    receiver, status = post(tmp_path, b"[" + b",".join([b"1"] * 1500) + b"]")
    assert status == 200
    assert len(receiver.quarantined()) == 1000
    assert receiver.telemetry.quarantined_count == 1500


def test_exceeded_disk_budget_is_answered_with_503(tmp_path: Path) -> None:
    """The response has Retry-After, and events are accepted again as soon as there is room."""

    async def scenario(receiver: Receiver) -> None:
        body = json.dumps([{**EVENT, "pad": random.Random(1).randbytes(300).hex()}]).encode()
        assert (await receiver.post(body)).status_code == 200
        refused = await receiver.post(body)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        await receiver.spool.rotate()
        for segment in receiver.spool.segments():
            await receiver.spool.discard(segment, 1)
        assert (await receiver.post(body)).status_code == 200

    receiver = run(tmp_path, scenario, budget=1200)
    assert b'refused_total{reason="spool"} 1.0' in receiver.telemetry.exposition()


def test_remote_clients_are_refused_unless_allowed(tmp_path: Path) -> None:
    """Ray posts from the same host; any other client could forge events."""

    async def scenario(receiver: Receiver) -> None:
        body = json.dumps([EVENT]).encode()
        assert (await receiver.post(body, "10.1.2.3")).status_code == 403
        assert (await receiver.post(body, "::1")).status_code == 200

    async def post_remotely(receiver: Receiver) -> None:
        assert (await receiver.post(json.dumps([EVENT]).encode(), "10.1.2.3")).status_code == 200

    run(tmp_path / "closed", scenario)
    run(tmp_path / "open", post_remotely, remote=True)


def test_configured_token_is_required(tmp_path: Path) -> None:

    async def scenario(receiver: Receiver) -> None:
        body = json.dumps([EVENT]).encode()
        for wrong in ("", "Bearer", "Bearer other", "secret", "Basic secret"):
            assert (await receiver.post(body, authorization=wrong)).status_code == 401
        assert (await receiver.post(body, authorization="Bearer secret")).status_code == 200

    receiver = run(tmp_path, scenario, token="secret")  # noqa: S106
    assert len(receiver.spooled()) == 1


def test_slow_body_times_out_with_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, and a sender that still runs sends it again."""
    monkeypatch.setattr("rayhistory.collector.ingest.endpoint._BODY_TIMEOUT_S", 0.05)

    async def scenario(receiver: Receiver) -> None:
        async def slow_body() -> AsyncIterator[bytes]:
            yield b"["
            await asyncio.sleep(5)
            yield b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/v1/events", content=slow_body())).status_code == 408

    receiver = run(tmp_path, scenario)
    assert b'refused_total{reason="slow"} 1.0' in receiver.telemetry.exposition()


def test_large_body_is_accepted_while_another_is_received_slowly(tmp_path: Path) -> None:
    """Also when the slow sender has sent no Content-Length."""

    async def scenario(receiver: Receiver) -> None:
        started, resume = asyncio.Event(), asyncio.Event()

        async def slow_body() -> AsyncIterator[bytes]:
            yield b"[" + b" " * (9 << 20)
            started.set()
            await resume.wait()
            yield b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            slow = asyncio.create_task(client.post("/v1/events", content=slow_body()))
            await started.wait()
            large = b"[%b%b]" % (b" " * (9 << 20), json.dumps(EVENT).encode())
            assert (await receiver.post(large)).status_code == 200
            resume.set()
            assert (await slow).status_code == 200

    receiver = run(tmp_path, scenario, max_body_bytes=20 << 20, budget=10**8)
    assert len(receiver.spooled()) == 1


def test_slow_body_is_cut_off_when_the_body_budget_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies wait for each other, but not for a stalled sender."""
    monkeypatch.setattr("rayhistory.collector.ingest.endpoint._BODIES_BUDGET", 1_000_000)
    monkeypatch.setattr("rayhistory.collector.ingest.endpoint._BODY_TIMEOUT_S", 3600.0)
    monkeypatch.setattr("rayhistory.collector.ingest.body_budget._SLOW_SENDER_TIMEOUT_S", 0.1)

    async def scenario(receiver: Receiver) -> None:
        started = asyncio.Event()

        async def slow_body() -> AsyncIterator[bytes]:
            yield b"[" + b" " * 600_000
            started.set()
            await asyncio.Event().wait()

        async def in_chunks() -> AsyncIterator[bytes]:
            yield b"["
            for _ in range(100):
                yield b" " * 5000
            yield json.dumps(EVENT).encode() + b"]"

        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
        ):
            slow = asyncio.create_task(client.post("/v1/events", content=slow_body()))
            await started.wait()
            assert (await receiver.post(json.dumps([EVENT]).encode())).status_code == 200
            assert not slow.done()
            others = [client.post("/v1/events", content=in_chunks()) for _ in range(5)]
            assert [each.status_code for each in await asyncio.gather(*others)] == [200] * 5
            assert (await slow).status_code == 408
            assert receiver.ingest._body_budget._reserved == 0

    assert len(run(tmp_path, scenario).spooled()) == 6


def test_body_counts_from_its_first_byte_until_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event, reserved = json.dumps(EVENT).encode(), []

    async def scenario(receiver: Receiver) -> None:
        budget, append = receiver.ingest._body_budget, receiver.spool.append

        async def note_and_append(blocks: Any) -> None:
            reserved.append(budget._reserved)
            await append(blocks)

        async def body() -> AsyncIterator[bytes]:
            yield b"["
            reserved.append(budget._reserved)
            yield event + b"]"

        monkeypatch.setattr(receiver.spool, "append", note_and_append)
        transport = httpx.ASGITransport(receiver.app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/v1/events", content=body())).status_code == 200
        reserved.append(budget._reserved)

    assert len(run(tmp_path, scenario).spooled()) == 1
    assert reserved == [1, len(event) + 2, 0]


def test_failing_disk_is_answered_with_503_until_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def scenario(receiver: Receiver) -> None:
        body = json.dumps([EVENT]).encode()
        for number in (errno.ENOSPC, errno.EIO):
            with monkeypatch.context() as patch:

                def fails(_: int, number: int = number) -> None:
                    raise OSError(number, os.strerror(number))

                patch.setattr(os, "fdatasync", fails)
                response = await receiver.post(body)
                assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
                assert os.strerror(number) in response.text
                assert not receiver.spool.writable
            await receiver.spool.probe()
            assert receiver.spool.writable
            assert (await receiver.post(body)).status_code == 200

    receiver = run(tmp_path, scenario)
    assert len(receiver.spooled()) == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::ffff:10.0.0.1", False), ("localhost.evil", False), ("", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognised(host: str, expected: bool) -> None:
    """IPv4, IPv6, and IPv4-mapped IPv6 addresses."""
    assert is_loopback(host) is expected
