"""The dashboard poller requests the right URIs and stores changed responses."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rayhistory.collector.dashboard.poller import DashboardPoller
from rayhistory.collector.dashboard.schedule import (
    ACTORS,
    FAILED_TASKS,
    JOBS,
    NODES,
    PLACEMENT_GROUPS,
    SERVE,
    TASK_SPANS,
    PollSchedule,
)
from rayhistory.collector.dashboard_client import DashboardClient
from rayhistory.collector.ingest.driver_watch import DriverWatch
from rayhistory.collector.session.session_record import SessionRecord
from rayhistory.collector.spool.block import Block, Damage
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreError
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage.local import LocalStore
from support.dashboard_double import SESSION, VERSION, FakeDashboard, run_dashboard
from support.spool_segments import read_lines

pytestmark = pytest.mark.slow

REF = SessionRef("default", "test", SESSION)


def run_poller(
    tmp_path: Path,
    use: Callable[[DashboardPoller, FakeDashboard], Awaitable[None]],
    drivers: DriverWatch | None = None,
    telemetry: Telemetry | None = None,
    put_endpoint: Callable[[str, bytes], Awaitable[None]] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], FakeDashboard]:
    """Run a poller against a double of the dashboard; return the stored records in order, and the double."""

    counters = telemetry or Telemetry()

    async def run(dashboard: FakeDashboard) -> None:
        settings = Settings(ray_dashboard_address=options.pop("address", dashboard.url), **options)
        layout, store = Layout(), LocalStore(tmp_path / "store")
        spool = Spool(PrivateDirectory(tmp_path / "spool"), budget=10**7, segment_size=10**7, segment_age=300)
        await spool.open()
        poller = DashboardPoller(
            session=SESSION,
            dashboard=DashboardClient(settings, SESSION, lambda: dashboard.url),
            schedule=PollSchedule(0.0, 30.0, ("/additional",)),
            spool=spool,
            put_endpoint=put_endpoint or (lambda uri, body: store.put(layout.endpoint_key(REF, uri), body)),
            record=SessionRecord(REF, None, store, layout, counters, spool=spool, is_running=True),
            telemetry=counters,
            drivers=drivers or DriverWatch(),
        )
        await use(poller, dashboard)
        await poller.close()
        await spool.close()

    with run_dashboard() as dashboard:
        asyncio.run(run(dashboard))
    lines = [line for path in tmp_path.rglob("*.wal") for line in read_lines(path, Damage())]
    assert all(category == "snapshots" for category, _ in lines)
    return [json.loads(line) for _, line in lines], dashboard


def bodies(records: list[dict[str, Any]], uri: str) -> list[Any]:
    responses = [record["dashboardSnapshot"] for record in records]
    return [response["body"] for response in responses if response["uri"] == uri]


def test_response_is_stored_when_it_has_changed(tmp_path: Path) -> None:
    """With its time, as a record like Ray's own events."""

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        await poller.poll_final()
        await poller.poll_final()
        dashboard.responses[JOBS] = [{"submission_id": "a", "status": "SUCCEEDED"}]
        await poller.poll_final()

    records, dashboard = run_poller(tmp_path, use)
    assert bodies(records, JOBS) == [[], [{"submission_id": "a", "status": "SUCCEEDED"}]]
    record = records[0]
    assert (record["eventType"], record["sourceType"], record["sessionName"]) == (
        "DASHBOARD_SNAPSHOT",
        "RAYHISTORY",
        SESSION,
    )
    assert record["timestamp"].endswith("Z")
    assert len(record["timestamp"]) == len("2026-11-15T19:18:22.063903729Z")
    assert all("rayhistory-collector" in headers["User-Agent"] for headers in dashboard.headers)


def test_volatile_fields_are_not_a_change(tmp_path: Path) -> None:
    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        for now in (1.5, 2.5):
            dashboard.responses[NODES] = {"data": {"summary": [{"now": now, "cpu": 3}]}}
            await poller.poll_final()

    assert len(bodies(run_poller(tmp_path, use)[0], NODES)) == 1


def test_empty_strings_after_command_lines_are_removed(tmp_path: Path) -> None:
    """Ray appends thousands of them."""

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses[NODES] = {"cmdline": ["ray::IDLE", "", "x", *[""] * 5000], "few": ["a", "", ""]}
        await poller.poll_final()

    assert bodies(run_poller(tmp_path, use)[0], NODES) == [{"cmdline": ["ray::IDLE", "", "x"], "few": ["a", "", ""]}]


def test_cached_routes_are_requested_without_rays_cache(tmp_path: Path) -> None:
    """Some routes return a cached response of any age."""

    async def use(poller: DashboardPoller, _: FakeDashboard) -> None:
        await poller.poll_final()

    _, dashboard = run_poller(tmp_path, use)
    assert f"{NODES}&nocache=1" in dashboard.requests
    assert f"{ACTORS}?nocache=1" in dashboard.requests
    assert JOBS in dashboard.requests


def test_serve_data_and_train_are_polled_only_when_in_use(tmp_path: Path) -> None:
    """These requests start drivers inside Ray."""

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        await poller.poll_final()
        assert not any("serve" in uri or "data/" in uri or "train" in uri for uri in dashboard.requests)
        dashboard.responses[JOBS] = [{"job_id": "02000000", "status": "RUNNING"}]
        dashboard.responses[ACTORS] = {
            "data": {"actors": {"x": {"actorClass": "ServeController"}, "y": {"className": "_StatsActor"}}}
        }
        await poller.poll_final()
        assert {SERVE, "/api/data/datasets/02000000"} <= set(dashboard.requests)
        assert not any("train" in uri for uri in dashboard.requests)

    run_poller(tmp_path, use)


def test_responses_that_kuberay_stores_are_also_stored_as_its_objects(tmp_path: Path) -> None:
    """Unchanged, under KubeRay's keys."""

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses |= {
            PLACEMENT_GROUPS: {"a": [1, "", ""]},
            "/timezone": {"offset": "+00:00"},
            "/additional": "text",
        }
        await poller.poll_final()

    run_poller(tmp_path, use)
    folder = tmp_path / "store/cluster-history/raycluster/default/test" / SESSION / "fetched_endpoints"
    objects = {path.name: path.read_text() for path in folder.iterdir()}
    assert objects == {
        "restful__api__v0__placement_groups?detail=1&limit=10000": '{"a": [1, "", ""]}',
        "restful__timezone": '{"offset": "+00:00"}',
        "restful__additional": '"text"',
    }


def test_object_of_kuberay_is_written_after_an_outage_of_the_store(tmp_path: Path) -> None:
    """Also of a response that is requested only once. The spool already has the response and gets it only once."""
    attempts: list[str] = []

    async def put_after_an_outage(uri: str, _: bytes) -> None:
        attempts.append(uri)
        if attempts.count("/timezone") == 1:
            raise StoreError("unavailable")

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses["/timezone"] = {"offset": "+00:00"}
        await poller.poll_final()
        await poller.poll_final()

    records, _ = run_poller(tmp_path, use, put_endpoint=put_after_an_outage)
    assert attempts.count("/timezone") == 2
    assert bodies(records, "/timezone") == [{"offset": "+00:00"}]


def test_dashboard_of_another_session_is_not_polled(tmp_path: Path) -> None:
    """With two clusters on one host, the default port may belong to the other one."""
    telemetry = Telemetry()

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses["/api/version"] = {**VERSION, "session_name": "session_2020-01-01_00-00-00_000000_1"}
        await poller.poll_final()

    records, dashboard = run_poller(tmp_path, use, telemetry=telemetry)
    assert records == []
    assert set(dashboard.requests) == {"/api/version"}
    assert (
        telemetry.registry.get_sample_value(
            "rayhistory_collector_dashboard_poll_failures_total", {"reason": "other_session"}
        )
        == 1
    )


def test_address_in_the_dashboard_log_is_tried_after_the_configured_one(tmp_path: Path) -> None:
    async def use(poller: DashboardPoller, _: FakeDashboard) -> None:
        await poller.poll_final()
        await poller.poll_final()

    records, _ = run_poller(tmp_path, use, address="http://127.0.0.1:9")
    assert bodies(records, JOBS) == [[]]


def test_token_is_sent_in_rays_header(tmp_path: Path) -> None:
    """As KubeRay's collector does."""

    async def use(poller: DashboardPoller, _: FakeDashboard) -> None:
        await poller.poll_final()

    _, dashboard = run_poller(tmp_path, use, ray_auth_token=" secret\n")  # noqa: S106
    tokens = [headers.get("X-Ray-Authorization") or headers.get("x-ray-authorization") for headers in dashboard.headers]
    assert (tokens[0], set(tokens[1:])) == (None, {"Bearer secret"})  # the first request asks whose dashboard it is


def test_final_polls_run_a_few_at_a_time(tmp_path: Path) -> None:
    """Their responses are in memory together, and the dashboard is about to exit too."""

    async def use(poller: DashboardPoller, _: FakeDashboard) -> None:
        await poller.poll_final()

    _, dashboard = run_poller(tmp_path, use)
    assert len(dashboard.requests) > 6
    assert 1 < dashboard.max_concurrent <= 4


def test_failed_tasks_are_stored_if_a_driver_does_not_export(tmp_path: Path) -> None:
    """Only the dashboard has their names and errors."""
    drivers = DriverWatch()
    definition = b'{"eventType": "DRIVER_JOB_DEFINITION_EVENT"}'
    drivers.observe(SESSION, [Block("job_events/02000000", 1, definition)])

    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses[FAILED_TASKS] = {"data": {"result": {"result": [{"name": "load"}]}}}
        await poller.poll_final()

    records, _ = run_poller(tmp_path, use, drivers)
    assert bodies(records, FAILED_TASKS) == [{"data": {"result": {"result": [{"name": "load"}]}}}]


def test_failed_tasks_are_not_polled_if_all_drivers_export(tmp_path: Path) -> None:
    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses[FAILED_TASKS] = {}
        await poller.poll_final()

    records, _ = run_poller(tmp_path, use)
    assert bodies(records, FAILED_TASKS) == []


def task_list(*names: str) -> dict[str, Any]:
    events = [{"event_name": name, "start_time": 1.5, "end_time": 2.5, "extra_data": {}} for name in names]
    row = {"task_id": "aa" * 24, "attempt_number": 0, "job_id": "01000000", "profiling_data": {"events": events}}
    return {"data": {"result": {"result": [row]}}}


def test_new_spans_are_stored_if_ray_does_not_export_all(tmp_path: Path) -> None:
    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses["/api/version"] = VERSION | {"ray_version": "2.54.1"}
        for names in (("a",), ("a",), ("a", "b")):
            dashboard.responses[TASK_SPANS] = task_list(*names)
            await poller.poll_final()

    records, dashboard = run_poller(tmp_path, use)
    assert dashboard.count(TASK_SPANS) == 3
    assert bodies(records, TASK_SPANS) == [task_list("a"), task_list("b")]


def test_spans_are_not_polled_if_ray_exports_all(tmp_path: Path) -> None:
    async def use(poller: DashboardPoller, dashboard: FakeDashboard) -> None:
        dashboard.responses["/api/version"] = VERSION | {"ray_version": "2.55.0"}
        await poller.poll_final()

    _, dashboard = run_poller(tmp_path, use)
    assert dashboard.count(JOBS) == 1
    assert dashboard.count(TASK_SPANS) == 0
