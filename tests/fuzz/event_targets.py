"""Fuzz targets: what the collector receives and the fold decodes."""

import gzip
import json

import msgspec
import zstandard

from fuzz.target import REF, Target
from rayhistory.collector.ingest.event_routing import RoutingError, route_batch
from rayhistory.collector.metrics.scrape import Scrape, parse_series
from rayhistory.events import dashboard_responses, export_files, state_api
from rayhistory.events.event_decoder import EventDecoder
from rayhistory.events.event_logs import add_log_lines
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.events.table_columns import TABLES_BY_NAME
from rayhistory.index.fold.decompression import decompressor_for
from rayhistory.index.fold.partial_files import arrow_batch
from rayhistory.sessions.ref import is_safe_component, is_session_name
from support.paths import DATA


def _check_columns(rows: RowBuffer) -> None:
    """Check that all rows become columns of the declared types."""
    for name, columns in rows.columns.items():
        values = list(columns.values())
        assert len(set(map(len, values))) == 1, name
        if values[0]:
            arrow_batch(TABLES_BY_NAME[name], values)


def events(data: bytes) -> None:
    for feed in (EventDecoder.feed, EventDecoder.feed_array):
        decoder = EventDecoder("fuzzed", RowBuffer())
        assert feed(decoder, data) >= 0
        decoder.finish()
        _check_columns(decoder.rows)


def _event_seeds() -> list[bytes]:
    lines = (DATA / "ray-2.60/events.jsonl").read_bytes().splitlines()
    kinds = {json.loads(line)["eventType"]: line for line in lines}
    bodies = [path.read_bytes().splitlines()[0] for path in sorted((DATA / "bodies").glob("*.jsonl"))]
    return [*kinds.values(), b"\n".join(lines[:20]), *_response_events(), *bodies]


def _response_events() -> list[bytes]:
    return [
        json.dumps({"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:19:50.5Z",
                    "dashboardSnapshot": {"uri": uri, "body": json.loads(body)}}).encode()
        for uri, body in _responses().items()
    ]  # fmt: skip


def _responses() -> dict[str, bytes]:
    found = {
        "/api/jobs/": "jobs_after_snap", "/api/v0/placement_groups": "v0_placement_groups_detail",
        "/api/v0/workers": "v0_workers_detail", "/api/v0/nodes": "v0_nodes_detail", "/nodes": "nodes_summary",
        "/api/v0/tasks": "v0_tasks_detail", "/api/v0/actors": "v0_actors_detail",
    }  # fmt: skip
    paths = {uri: DATA / f"ray-2.60/endpoints/{name}.json" for uri, name in found.items()}
    return {uri: _shorten(path.read_bytes()) for uri, path in paths.items() if path.exists()}


def _shorten(response: bytes) -> bytes:
    """Keep two items of each list: the others are alike."""

    def cut(value: object) -> object:
        if isinstance(value, dict):
            return {name: cut(item) for name, item in value.items()}
        return [cut(item) for item in value[:2]] if isinstance(value, list) else value

    return json.dumps(cut(json.loads(response))).encode()


def responses(data: bytes) -> None:
    """The first line is the URI of the dashboard response that follows."""
    uri, _, body = data.partition(b"\n")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    rows = RowBuffer()
    dashboard_responses.add_dashboard_rows(rows, uri.decode("latin-1"), document, 1_794_770_300_000_000_000)
    export_files.add_export_record(rows, document, 1_794_770_300_000_000_000)
    state_api.add_span_rows(rows, uri.decode("latin-1"), document, 1_794_770_300_000_000_000)
    state_api.add_state_rows(rows, uri.decode("latin-1"), document, 1_794_770_300_000_000_000)
    _check_columns(rows)


def _response_seeds() -> list[bytes]:
    kinds = [
        {"source_type": "EXPORT_TASK", "timestamp": 1794770300, "event_data": {
            "task_id": "AQID", "attempt_number": 0, "job_id": "AQAAAA==", "task_info": {"type": "NORMAL_TASK"},
            "state_updates": {"state_ts_ns": {"1": "1794770300000000000"}, "error_info": {"error_type": "X"}},
            "profile_events": {"component_type": "worker", "events": [{"event_name": "x", "start_time": "1"}]}}},
        {"source_type": "EXPORT_ACTOR", "timestamp": 1794770300, "event_data": {
            "actor_id": "AQID", "job_id": "AQAAAA==", "state": "DEAD", "death_cause": {"a": {"actor_id": "AQ=="}}}},
        {"source_type": "EXPORT_NODE", "timestamp": 1794770300, "event_data": {
            "node_id": "AQID", "state": "ALIVE", "start_time_ms": "1", "labels": {}, "resources_total": {}}},
        {"source_type": "EXPORT_DRIVER_JOB", "timestamp": 1794770300, "event_data": {
            "job_id": "AQAAAA==", "config": {"metadata": {}}, "start_time": "1", "driver_pid": "7"}},
        {"source_type": "EXPORT_SUBMISSION_JOB", "timestamp": 1794770300, "event_data": {
            "submission_job_id": "x", "status": "FAILED", "message": "m", "start_time": 1, "runtime_env_json": "{}"}},
    ]  # fmt: skip
    exported = [b"\n" + json.dumps(kind).encode() for kind in kinds]
    return [*(uri.encode() + b"\n" + body for uri, body in _responses().items()), *exported]


def event_logs(data: bytes) -> None:
    rows = RowBuffer()
    assert add_log_lines(rows, data) >= 0
    _check_columns(rows)


def _event_log_seeds() -> list[bytes]:
    line = {"event_id": "e1", "source_type": "GCS", "host_name": "h", "pid": "7", "severity": "INFO", "label": "x",
            "message": "a\\nb", "timestamp": "1794770300", "custom_fields": {"job_id": "01000000"}}  # fmt: skip
    return [json.dumps(line).encode(), json.dumps({**line, "source_hostname": "h", "source_pid": 7}).encode()]


def compressed_text(data: bytes) -> None:
    """Any input is decompressed in pieces of bounded size, up to the first damage."""
    decompressor = decompressor_for(data)
    total = 0
    for piece in decompressor.feed(data) if decompressor else ():
        assert len(piece) <= 8 << 20
        total += len(piece)
        if total > 64 << 20:
            break


def _compressed_seeds() -> list[bytes]:
    text = (DATA / "ray-2.60/events.jsonl").read_bytes()[:20_000]
    return [
        gzip.compress(text), gzip.compress(b"a") * 3, gzip.compress(b" " * 10_000_000), gzip.compress(text)[:-9],
        zstandard.compress(text), zstandard.compress(b"a") * 3, zstandard.compress(b" " * 10_000_000),
        zstandard.ZstdCompressor(write_content_size=False).compress(text),
    ]  # fmt: skip


def bodies(data: bytes) -> None:
    """Every event of a body is either routed once, unchanged, or quarantined."""
    try:
        batch = route_batch(data)
    except RoutingError as reason:
        assert len(str(reason)) < 40
        return
    routed = 0
    for session, blocks in batch.blocks.items():
        assert is_session_name(session)
        for block in blocks:
            assert all(is_safe_component(part) for part in block.category.split("/"))
            assert block.data.count(b"\n") == block.lines
            assert all(isinstance(msgspec.json.decode(line), dict) for line in block.data.splitlines())
            routed += block.lines
    assert routed + len(batch.malformed) == batch.event_count


def _body_seeds() -> list[bytes]:
    paths = sorted((DATA / "bodies").glob("*.jsonl"))
    real = [body for path in paths for body in path.read_bytes().splitlines()[:3]]
    small = {"eventId": "e", "sessionName": REF.session, "eventType": "NODE_LIFECYCLE_EVENT"}
    return [*real, json.dumps([small]).encode(), json.dumps([{**small, "message": "ü"}], ensure_ascii=False).encode()]


def scrapes(data: bytes) -> None:
    scrape = Scrape()
    for line in data.split(b"\n"):
        scrape.add_line(line, (b"process_",))
    for series in scrape.values:
        parse_series(series)


def _scrape_seeds() -> list[bytes]:
    text = gzip.decompress((DATA / "ray-2.60/metrics.txt.gz").read_bytes())
    return [b"\n".join(text.splitlines()[at : at + 30]) for at in range(0, 300, 30)]


TARGETS = {
    "events": Target(events, _event_seeds),
    "dashboard-responses": Target(responses, _response_seeds),
    "event-logs": Target(event_logs, _event_log_seeds),
    "compressed-text": Target(compressed_text, _compressed_seeds),
    "bodies": Target(bodies, _body_seeds),
    "scrapes": Target(scrapes, _scrape_seeds),
}
