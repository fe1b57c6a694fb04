"""Request smuggling and malformed HTTP against the server and the collector: each gets one response or none."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from faults.collector_under_test import SESSION, CollectorUnderTest
from support.hostile_inputs import INJECTED, send_raw, statuses
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.server_process import running_server

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
    "length with a sign": b"Content-Length: +4\r\n",
    "a negative length": b"Content-Length: -1\r\n",
    "a length in hexadecimal": b"Content-Length: 0x4\r\n",
    "huge length": b"Content-Length: 99999999999999999999999999\r\n",
    "unknown transfer encoding": b"Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n",
    "chunks after a tab": b"Content-Length: 4\r\nTransfer-Encoding:\tchunked\r\n",
    "chunked and identity": b"Transfer-Encoding: chunked, identity\r\n",
    "a space before the colon": b"Content-Length: 4\r\nTransfer-Encoding : chunked\r\n",
    "a folded line": b"Content-Length: 4\r\nX: y\r\n Transfer-Encoding: chunked\r\n",
    "a bare carriage return": b"X: y\rContent-Length: 4\r\n",
    "a NUL": b"X: y\0z\r\n",
    "a header without a name": b": x\r\n",
    "header without a colon": b"Content-Length 4\r\n",
}
LINES = {
    "no version": b"GET /livez\r\n",
    "another version": b"GET /livez HTTP/9.9\r\n",
    "a space in the path": b"GET /livez /home HTTP/1.1\r\n",
    "a line break in the path": b"GET /livez\r\nX-Injected: 1 HTTP/1.1\r\n",
    "a tab for a space": b"GET\t/livez\tHTTP/1.1\r\n",
    "an unknown method": b"SMUGGLE /livez HTTP/1.1\r\n",
    "control in the path": b"GET /\x01\x7f HTTP/1.1\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


_TOLERATED = {"no version", "a line break in the path"}
"""Parsed as HTTP/0.9 requests, which end with their first line."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("requests")
    store_indexed_sample(settings_for(directory))
    with running_server(directory / "store", directory / "work") as address:
        yield address


@pytest.fixture(scope="module")
def collector() -> Iterator[CollectorUnderTest]:
    with CollectorUnderTest() as collector:
        collector.start()
        yield collector


def events_port(collector: CollectorUnderTest) -> str:
    return f"http://127.0.0.1:{collector.port}"


def is_healthy(address: str) -> bool:
    return statuses(send_raw(address, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")) == [200]


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_smuggled_request_is_not_served(server: str, conflict: str) -> None:
    """With conflicting lengths, the smuggled request is part of the first body or is not read."""
    received = send_raw(
        server, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n" + CONFLICTS[conflict] + b"\r\n" + _SMUGGLED
    )
    assert b"sessions" not in received
    assert len(statuses(received)) <= 1
    assert INJECTED.encode() not in received
    assert is_healthy(server)


@pytest.mark.parametrize("line", LINES)
def test_malformed_request_line_gets_at_most_one_response(
    server: str, collector: CollectorUnderTest, line: str
) -> None:
    for address in (server, events_port(collector)):
        received = send_raw(address, LINES[line] + b"Host: 127.0.0.1\r\n\r\n")
        assert len(statuses(received)) <= 1
        assert set(statuses(received)) <= {400, 404, 405} or line in _TOLERATED
        assert INJECTED.encode() not in received
        assert is_healthy(address)


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_smuggled_batch_is_not_stored(collector: CollectorUnderTest, conflict: str) -> None:
    hidden = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(_HIDDEN), _HIDDEN)
    address = events_port(collector)
    received = send_raw(address, b"POST /v1/events HTTP/1.1\r\nHost: x\r\n" + CONFLICTS[conflict] + b"\r\n" + hidden)
    assert len(statuses(received)) <= 1
    assert is_healthy(address)
    stored = b"".join(path.read_bytes() for path in collector.spool.rglob("*") if path.is_file())
    assert b"smuggled" not in stored


BROKEN_CHUNKS = {
    "invalid size": b"zz\r\nabc\r\n0\r\n\r\n",
    "huge size": b"ffffffffffffffffffff\r\nabc",
    "a size with a sign": b"-1\r\nabc\r\n0\r\n\r\n",
    "data longer than its size": b"1\r\nabcdef\r\n0\r\n\r\n",
    "no end": b"3\r\nabc\r\n",
    "a header after the end": b"0\r\nX-Injected: 1\r\n\r\n",
    "an extension with a line break": b"3;a=\"\nb\"\r\nabc\r\n0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("chunks", BROKEN_CHUNKS)
def test_malformed_chunks_are_harmless(collector: CollectorUnderTest, chunks: str) -> None:
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + BROKEN_CHUNKS[chunks]
    received = send_raw(events_port(collector), request)
    assert set(statuses(received)) <= {200, 400, 408}
    assert INJECTED.encode() not in received
    assert is_healthy(events_port(collector))


def test_valid_chunks_are_accepted(collector: CollectorUnderTest) -> None:
    """Control for the tests above."""
    head = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(send_raw(events_port(collector), head + chunked(_BATCH))) == [200]


def test_two_pipelined_requests_are_both_served(server: str) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
    assert statuses(send_raw(server, request % b"" + request % b"Connection: close\r\n")) == [200, 200]


@pytest.mark.parametrize("size", [70_000, 4_000_000])
def test_endless_headers_are_limited(server: str, collector: CollectorUnderTest, size: int) -> None:
    for address in (server, events_port(collector)):
        received = send_raw(address, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * size)
        assert set(statuses(received)) <= {400, 431}
        assert is_healthy(address)


def test_aborted_connections_leak_nothing(server: str, collector: CollectorUnderTest) -> None:
    """Open and close connections, also in the middle of a request."""
    for address in (server, events_port(collector)):
        url = urlsplit(address)
        for partial in (
            b"",
            b"G",
            b"GET /livez HTTP/1.1\r\nHo",
            b"POST /v1/events HTTP/1.1\r\nContent-Length: 100\r\n\r\n[",
        ):
            for _ in range(20):
                with socket.create_connection((url.hostname or "", url.port or 0)) as connection:
                    connection.sendall(partial)
        assert is_healthy(address)
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
def test_collector_serves_no_other_paths(collector: CollectorUnderTest, name: str) -> None:
    for method in (b"GET", b"POST", b"PUT", b"DELETE"):
        request = b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n[]" % (
            method,
            NAMES[name].encode(),
        )
        received = send_raw(events_port(collector), request)
        assert set(statuses(received)) <= {307, 400, 404, 405, 431}, received[:200]
        assert f"\n{INJECTED}".lower().encode() not in received.lower()
        assert b"root:x" not in received


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
def test_session_name_of_an_event_is_never_used_as_a_path(collector: CollectorUnderTest, name: str) -> None:
    """The event is quarantined and acked with 200, so that Ray does not retry forever."""
    for field in ("sessionName", "session_name"):
        body = json.dumps([{"eventId": "x", field: SESSIONS[name], "eventType": "NODE_LIFECYCLE_EVENT"}]).encode()
        request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
            len(body),
            body,
        )
        assert statuses(send_raw(events_port(collector), request)) == [200]
    known = {SESSION, "set-aside"}
    assert not [path for path in collector.spool.rglob("session_*") if path.is_dir() and path.name not in known]


JOBS = {"up": "../../../x", "absolute": "/etc/x", "dots": "..", "nul": "a\0b", "long": "a" * 5_000, "slash": "a/b/c"}


@pytest.mark.parametrize("name", JOBS)
def test_job_id_of_an_event_is_never_used_as_a_path(collector: CollectorUnderTest, name: str) -> None:
    """An event whose job id cannot be a folder is stored with the events without a job."""
    event = {"eventId": f"job {name}", "sessionName": SESSION, "eventType": "TASK_DEFINITION_EVENT",
             "taskDefinitionEvent": {"jobId": JOBS[name]}}  # fmt: skip
    body = json.dumps([event]).encode()
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    assert statuses(send_raw(events_port(collector), request)) == [200]
    assert not [path for path in collector.home.rglob("*") if path.name in ("x", "c")]


def test_session_path_is_not_an_open_redirect(server: str) -> None:
    for path in (
        "//evil.example/s/a/b/latest",
        "/s//evil.example/x/latest",
        f"{REF.url.rstrip('/')}//evil.example",
        "/s/default/sample/latest",
        "/\\evil.example/..",
        "/s/default/sample/latest%0d%0aX-Injected: 1",
    ):
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode()
        head = send_raw(server, request).split(b"\r\n\r\n")[0].lower()
        locations = [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if line.startswith(b"location:")]
        assert all(location.startswith(b"/s/") for location in locations), locations
        assert INJECTED.lower().encode() + b":" not in head
