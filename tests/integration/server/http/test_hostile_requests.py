"""Requests that want to be two, or to be read in another way by something in front: a server answers one, or none."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from faults.victim import SESSION, Victim
from hostile import INJECTED, exchange, statuses
from recorded.served import serving
from recorded_sample import REF, keep_sample, settings_for

_SMUGGLED = b"GET /home.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_BATCH = json.dumps([{"eventId": "good", "sessionName": SESSION, "eventType": "NODE_LIFECYCLE_EVENT"}]).encode()
_HIDDEN = json.dumps([{"eventId": "smuggled", "sessionName": SESSION, "eventType": "NODE_LIFECYCLE_EVENT"}]).encode()


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


CONFLICTS = {
    "length and chunks": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 44\r\n",
    "two lengths in one": b"Content-Length: 0, 44\r\n",
    "a length that is none": b"Content-Length: +4\r\n",
    "a negative length": b"Content-Length: -1\r\n",
    "a length in hexadecimal": b"Content-Length: 0x4\r\n",
    "a length beyond all numbers": b"Content-Length: 99999999999999999999999999\r\n",
    "chunks in disguise": b"Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n",
    "chunks after a tab": b"Content-Length: 4\r\nTransfer-Encoding:\tchunked\r\n",
    "chunks, and chunks as nothing": b"Transfer-Encoding: chunked, identity\r\n",
    "a space before the colon": b"Content-Length: 4\r\nTransfer-Encoding : chunked\r\n",
    "a folded line": b"Content-Length: 4\r\nX: y\r\n Transfer-Encoding: chunked\r\n",
    "a bare carriage return": b"X: y\rContent-Length: 4\r\n",
    "a NUL": b"X: y\0z\r\n",
    "a header without a name": b": x\r\n",
    "a header that is no header": b"Content-Length 4\r\n",
}
LINES = {
    "no version": b"GET /livez\r\n",
    "another version": b"GET /livez HTTP/9.9\r\n",
    "a space in the path": b"GET /livez /home HTTP/1.1\r\n",
    "a line break in the path": b"GET /livez\r\nX-Injected: 1 HTTP/1.1\r\n",
    "a tab for a space": b"GET\t/livez\tHTTP/1.1\r\n",
    "an unknown method": b"SMUGGLE /livez HTTP/1.1\r\n",
    "control in the path": b"GET /\x01\x7f HTTP/1.1\r\n",
    "HTTP/2 without asking": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


_TOLERATED = {"no version", "a line break in the path"}
"""Read as requests of HTTP/0.9, which end with their first line."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("requests")
    keep_sample(settings_for(directory))
    with serving(directory / "store", directory / "work") as address:
        yield address


@pytest.fixture(scope="module")
def collector() -> Iterator[Victim]:
    with Victim() as victim:
        victim.start()
        yield victim


def events_port(collector: Victim) -> str:
    return f"http://127.0.0.1:{collector.port}"


def is_well(address: str) -> bool:
    return statuses(exchange(address, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")) == [200]


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_no_second_request_hides_in_the_body_of_one(server: str, conflict: str) -> None:
    """Whatever the lengths say, the hidden request is part of the first, or nothing is read on."""
    heard = exchange(server, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CONFLICTS[conflict] + b"\r\n" + _SMUGGLED)
    assert b"sessions" not in heard
    assert len(statuses(heard)) <= 1
    assert INJECTED.encode() not in heard
    assert is_well(server)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_request_gets_one_answer_or_none(server: str, collector: Victim, line: str) -> None:
    for address in (server, events_port(collector)):
        heard = exchange(address, LINES[line] + b"Host: 127.0.0.1\r\n\r\n")
        assert len(statuses(heard)) <= 1
        assert set(statuses(heard)) <= {400, 404, 405} or line in _TOLERATED
        assert INJECTED.encode() not in heard
        assert is_well(address)


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_no_second_batch_hides_in_the_body_of_one(collector: Victim, conflict: str) -> None:
    """The hidden one is neither answered nor kept."""
    hidden = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(_HIDDEN), _HIDDEN)
    address = events_port(collector)
    heard = exchange(address, b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + CONFLICTS[conflict] + b"\r\n" + hidden)
    assert len(statuses(heard)) <= 1
    assert is_well(address)
    kept = b"".join(path.read_bytes() for path in collector.spool.rglob("*") if path.is_file())
    assert b"smuggled" not in kept


BROKEN_CHUNKS = {
    "a size that is none": b"zz\r\nabc\r\n0\r\n\r\n",
    "a size beyond all numbers": b"ffffffffffffffffffff\r\nabc",
    "a size with a sign": b"-1\r\nabc\r\n0\r\n\r\n",
    "more than was said": b"1\r\nabcdef\r\n0\r\n\r\n",
    "no end": b"3\r\nabc\r\n",
    "a header after the end": b"0\r\nX-Injected: 1\r\n\r\n",
    "an extension with a line break": b"3;a=\"\nb\"\r\nabc\r\n0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("chunks", BROKEN_CHUNKS)
def test_broken_chunks_harm_nobody(collector: Victim, chunks: str) -> None:
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + BROKEN_CHUNKS[chunks]
    heard = exchange(events_port(collector), request)
    assert set(statuses(heard)) <= {200, 400, 408}
    assert INJECTED.encode() not in heard
    assert is_well(events_port(collector))


def test_good_chunks_are_taken(collector: Victim) -> None:
    """So that the tests above refuse for the right reason."""
    begin = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(exchange(events_port(collector), begin + chunked(_BATCH))) == [200]


def test_two_good_requests_in_a_row_are_two(server: str) -> None:
    one = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
    assert statuses(exchange(server, one % b"" + one % b"Connection: close\r\n")) == [200, 200]


@pytest.mark.parametrize("size", [70_000, 4_000_000])
def test_headers_without_end_are_not_collected_without_end(server: str, collector: Victim, size: int) -> None:
    for address in (server, events_port(collector)):
        heard = exchange(address, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * size)
        assert set(statuses(heard)) <= {400, 431}
        assert is_well(address)


def test_visitors_that_say_nothing_leave_no_trace(server: str, collector: Victim) -> None:
    """Connections that are opened and closed, or end in the middle of a request."""
    for address in (server, events_port(collector)):
        found = urlsplit(address)
        for said in (
            b"",
            b"G",
            b"GET /livez HTTP/1.1\r\nHo",
            b"POST /v1/events HTTP/1.1\r\nContent-Length: 100\r\n\r\n[",
        ):
            for _ in range(20):
                with socket.create_connection((found.hostname or "", found.port or 0)) as connection:
                    connection.sendall(said)
        assert is_well(address)
    assert collector.process
    assert len(list(Path(f"/proc/{collector.process.pid}/fd").iterdir())) < 100


NAMES = {
    "up": "/../../etc/passwd",
    "up, encoded": "/..%2f..%2fetc/passwd",
    "up, encoded twice": "/..%252f..%252fetc/passwd",
    "nul": "/v1/events%00",
    "semicolon": "/v1/events;x=y",
    "longer": "/v1/events/more",
    "two slashes": "//v1/events",
    "a header": "/v1/%0d%0aX-Injected:%201",
    "long": f"/{'a' * 60_000}",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_collector_has_no_other_places(collector: Victim, name: str) -> None:
    for method in (b"GET", b"POST", b"PUT", b"DELETE"):
        request = b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n[]" % (
            method,
            NAMES[name].encode(),
        )
        heard = exchange(events_port(collector), request)
        assert set(statuses(heard)) <= {307, 400, 404, 405, 431}, heard[:200]
        assert f"\n{INJECTED}".lower().encode() not in heard.lower()
        assert b"root:x" not in heard


SESSIONS = {
    "up": "../../../../etc/cron.d/x",
    "absolute": "/etc/passwd",
    "inside": f"{SESSION}/../../x",
    "nul": f"{SESSION}\0",
    "newline": f"{SESSION}\n",
    "backslash": f"{SESSION}\\..\\x",
    "long": "session_2026-11-15_19-18-08_055078_" + "1" * 5_000,
    "other digits": SESSION.translate({ord("1"): "١"}),  # Arabic digits
    "number": 7,
    "list": [SESSION],
    "nothing": None,
}


@pytest.mark.parametrize("name", SESSIONS)
def test_no_session_of_an_event_is_a_path(collector: Victim, name: str) -> None:
    """It is set aside and answered 200, so that Ray does not send it for ever; nothing is written outside."""
    for field in ("sessionName", "session_name"):
        body = json.dumps([{"eventId": "x", field: SESSIONS[name], "eventType": "NODE_LIFECYCLE_EVENT"}]).encode()
        request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
            len(body),
            body,
        )
        assert statuses(exchange(events_port(collector), request)) == [200]
    known = {SESSION, "set-aside"}
    assert not [path for path in collector.spool.rglob("session_*") if path.is_dir() and path.name not in known]


JOBS = {"up": "../../../x", "absolute": "/etc/x", "dots": "..", "nul": "a\0b", "long": "a" * 5_000, "slash": "a/b/c"}


@pytest.mark.parametrize("name", JOBS)
def test_no_job_of_an_event_is_a_path(collector: Victim, name: str) -> None:
    """An event whose job cannot be a folder is kept with those of no job."""
    event = {"eventId": f"job {name}", "sessionName": SESSION, "eventType": "TASK_DEFINITION_EVENT",
             "taskDefinitionEvent": {"jobId": JOBS[name]}}  # fmt: skip
    body = json.dumps([event]).encode()
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    assert statuses(exchange(events_port(collector), request)) == [200]
    assert not [path for path in collector.home.rglob("*") if path.name in ("x", "c")]


def test_a_session_address_is_not_an_open_redirect(server: str) -> None:
    for path in (
        "//evil.example/s/a/b/latest",
        "/s//evil.example/x/latest",
        f"{REF.url.rstrip('/')}//evil.example",
        "/s/default/sample/latest",
        "/\\evil.example/..",
        "/s/default/sample/latest%0d%0aX-Injected: 1",
    ):
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode()
        head = exchange(server, request).split(b"\r\n\r\n")[0].lower()
        where = [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.startswith(b"location:")]
        assert all(place.startswith(b"/s/") for place in where), where
        assert INJECTED.lower().encode() + b":" not in head
