"""Questions to the dashboard: which, when, and what is kept of the answers."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rayhistory.collector.block import Damage
from rayhistory.collector.dashboard import Dashboard, operators_address
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.record import SessionRecord
from rayhistory.collector.schedule import ACTORS, JOBS, NODES, PLACEMENT_GROUPS, SERVE, Question, Schedule
from rayhistory.collector.segment import records
from rayhistory.collector.snapshots import Snapshots
from rayhistory.collector.spool import Spool
from rayhistory.layout import Layout, SessionRef
from rayhistory.settings import Settings
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "a" * 56
REF = SessionRef("default", "test", SESSION)
VERSION = {"ray_version": "2.60.0", "session_name": SESSION}


class FakeDashboard:
    """A web server that answers as Ray's dashboard would, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/api/version": VERSION, JOBS: [], NODES: {}, ACTORS: {}}
        self.asked: list[str] = []
        self.most_at_once = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def count(self, uri: str) -> int:
        return self.asked.count(uri)


@contextmanager
def serving() -> Iterator[FakeDashboard]:
    fake = FakeDashboard()
    at_once: set[int] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at_once.add(threading.get_ident())
            fake.most_at_once = max(fake.most_at_once, len(at_once))
            time.sleep(0.02)
            fake.asked.append(self.path)
            fake.headers.append(dict(self.headers))
            uri = self.path.replace("?nocache=1", "").replace("&nocache=1", "")
            body = json.dumps(fake.answers.get(uri)).encode()
            self.send_response(200 if uri in fake.answers else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            at_once.discard(threading.get_ident())
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(
    tmp_path: Path, use: Callable[[Snapshots, FakeDashboard], Awaitable[None]], **options: Any
) -> tuple[list[dict[str, Any]], FakeDashboard]:
    """What was kept, in order."""

    async def session(fake: FakeDashboard) -> None:
        settings = Settings(ray_dashboard_address=options.pop("address", fake.url), **options)
        metrics, layout, store = Metrics(), Layout(), LocalStore(tmp_path / "store")
        spool = Spool(tmp_path / "spool", budget=10**7, segment_size=10**7, segment_age=300)
        await spool.open()
        snapshots = Snapshots(
            session=SESSION,
            dashboard=Dashboard(settings, SESSION, lambda: fake.url),
            questions=Schedule(0.0, 30.0, ("/additional",)),
            spool=spool,
            put_endpoint=lambda uri, body: store.put(layout.endpoint_key(REF, uri), body),
            record=SessionRecord(REF, None, store, layout, metrics, heartbeat=30),
            metrics=metrics,
        )
        await use(snapshots, fake)
        await snapshots.close()
        await spool.shut()

    with serving() as fake:
        asyncio.run(session(fake))
    kept = [record for path in tmp_path.rglob("*.wal") for record in records(path, Damage())]
    assert all(category == "snapshots" for category, _ in kept)
    return [json.loads(line) for _, line in kept], fake


def bodies(kept: list[dict[str, Any]], uri: str) -> list[Any]:
    return [each["dashboardSnapshot"]["body"] for each in kept if each["dashboardSnapshot"]["uri"] == uri]


def test_an_answer_is_kept_when_it_has_changed(tmp_path: Path) -> None:
    """With its time, as a record like Ray's own."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        await snapshots.final()
        await snapshots.final()
        fake.answers[JOBS] = [{"submission_id": "a", "status": "SUCCEEDED"}]
        await snapshots.final()

    kept, fake = ask(tmp_path, use)
    assert bodies(kept, JOBS) == [[], [{"submission_id": "a", "status": "SUCCEEDED"}]]
    record = kept[0]
    assert (record["eventType"], record["sourceType"], record["sessionName"]) == (
        "DASHBOARD_SNAPSHOT",
        "RAYHISTORY",
        SESSION,
    )
    assert record["timestamp"].endswith("Z")
    assert len(record["timestamp"]) == len("2026-11-15T19:18:22.063903729Z")
    assert all("rayhistory-collector" in headers["User-Agent"] for headers in fake.headers)


def test_the_time_of_asking_is_no_change(tmp_path: Path) -> None:
    """Fields that differ in every answer are not compared."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        for now in (1.5, 2.5):
            fake.answers[NODES] = {"data": {"summary": [{"now": now, "cpu": 3}]}}
            await snapshots.final()

    assert len(bodies(ask(tmp_path, use)[0], NODES)) == 1


def test_command_lines_are_trimmed(tmp_path: Path) -> None:
    """Ray's end in thousands of empty strings."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        fake.answers[NODES] = {"cmdline": ["ray::IDLE", "", "x", *[""] * 5000], "few": ["a", "", ""]}
        await snapshots.final()

    assert bodies(ask(tmp_path, use)[0], NODES) == [{"cmdline": ["ray::IDLE", "", "x"], "few": ["a", "", ""]}]


def test_rays_stale_answers_are_not_taken(tmp_path: Path) -> None:
    """Some routes answer with what they found the last time somebody asked."""

    async def use(snapshots: Snapshots, _: FakeDashboard) -> None:
        await snapshots.final()

    _, fake = ask(tmp_path, use)
    assert f"{NODES}&nocache=1" in fake.asked
    assert f"{ACTORS}?nocache=1" in fake.asked
    assert JOBS in fake.asked


def test_serve_data_and_train_are_asked_only_when_in_use(tmp_path: Path) -> None:
    """These questions start drivers inside Ray."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        await snapshots.final()
        assert not any("serve" in uri or "data/" in uri or "train" in uri for uri in fake.asked)
        fake.answers[JOBS] = [{"job_id": "02000000", "status": "RUNNING"}]
        fake.answers[ACTORS] = {
            "data": {"actors": {"x": {"actorClass": "ServeController"}, "y": {"className": "_StatsActor"}}}
        }
        await snapshots.final()
        assert {SERVE, "/api/data/datasets/02000000"} <= set(fake.asked)
        assert not any("train" in uri for uri in fake.asked)

    ask(tmp_path, use)


def test_kuberays_own_questions_are_also_kept_as_its_objects(tmp_path: Path) -> None:
    """Verbatim, under its names."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        fake.answers |= {PLACEMENT_GROUPS: {"a": [1, "", ""]}, "/timezone": {"offset": "+00:00"}, "/additional": "text"}
        await snapshots.final()

    ask(tmp_path, use)
    folder = tmp_path / "store/cluster-history/raycluster/default/test" / SESSION / "fetched_endpoints"
    names = {path.name: path.read_text() for path in folder.iterdir()}
    assert names == {
        "restful__api__v0__placement_groups?detail=1&limit=10000": '{"a": [1, "", ""]}',
        "restful__timezone": '{"offset": "+00:00"}',
        "restful__additional": '"text"',
    }


def test_another_sessions_dashboard_is_not_believed(tmp_path: Path) -> None:
    """Two clusters on one host: the usual port may be the other one's."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        fake.answers["/api/version"] = {**VERSION, "session_name": "session_2020-01-01_00-00-00_000000_1"}
        await snapshots.final()

    kept, fake = ask(tmp_path, use)
    assert kept == []
    assert set(fake.asked) == {"/api/version"}


def test_the_address_in_the_dashboards_log_is_the_second_guess(tmp_path: Path) -> None:
    """When nobody, or another cluster, answers at the configured one."""

    async def use(snapshots: Snapshots, _: FakeDashboard) -> None:
        await snapshots.final()
        await snapshots.final()

    kept, _ = ask(tmp_path, use, address="http://127.0.0.1:9")
    assert bodies(kept, JOBS) == [[]]


def test_a_token_is_sent_as_kuberays_collector_does(tmp_path: Path) -> None:
    """In Ray's own header."""

    async def use(snapshots: Snapshots, _: FakeDashboard) -> None:
        await snapshots.final()

    _, fake = ask(tmp_path, use, ray_auth_token=" secret\n")  # noqa: S106
    assert {headers.get("X-Ray-Authorization") or headers.get("x-ray-authorization") for headers in fake.headers} == {
        "Bearer secret"
    }


def test_one_question_per_second_whatever_the_size(tmp_path: Path) -> None:
    """A thousand nodes are asked in turn, and the frequent questions are not kept waiting."""
    schedule = Schedule(0.0, 30.0)
    schedule.set_nodes([f"{number:056x}" for number in range(1000)])
    asked: list[Question] = []
    now = 0.0
    while now < 300:
        question = schedule.next()
        now = max(now, question.due)
        asked.append(question)
        schedule.answered(question, now, 2000)
        now += 1.0
    jobs = [question for question in asked if question.uri == JOBS]
    nodes = {question.uri for question in asked if question.uri.startswith("/nodes/")}
    assert len(asked) <= 301
    assert len(jobs) > 60
    assert len(nodes) > 30


def test_large_answers_are_asked_for_less_often() -> None:
    """What is kept stays bounded."""
    schedule = Schedule(0.0, 30.0)
    question = schedule.next()
    schedule.answered(question, 100.0, 10 * 2**20)
    assert question.due == 100.0 + 160.0


def test_last_questions_are_asked_a_few_at_a_time(tmp_path: Path) -> None:
    """Their answers are in memory together, and the dashboard is about to end too."""

    async def use(snapshots: Snapshots, fake: FakeDashboard) -> None:
        await snapshots.final()

    _, fake = ask(tmp_path, use)
    assert len(fake.asked) > 6
    assert 1 < fake.most_at_once <= 4


def test_large_answers_are_in_memory_one_at_a_time() -> None:
    """The next is read when the first is kept; small ones do not wait for that."""

    async def use(dashboard: Dashboard, fake: FakeDashboard) -> None:
        fake.answers |= {"/a": "x" * 3_000_000, "/b": "y" * 3_000_000}
        async with asyncio.timeout(60):
            async with dashboard.answer("/a"):
                other = asyncio.create_task(dashboard.get("/b"))
                for _ in range(50):
                    await dashboard.get(JOBS)
                assert fake.count("/b") == 1
                assert not other.done()
            assert len(await other) > 3_000_000
        await dashboard.close()

    with serving() as fake:
        asyncio.run(use(Dashboard(Settings(ray_dashboard_address=fake.url), SESSION, lambda: None), fake))


def test_the_operators_address_of_the_head_is_read_in_all_its_forms() -> None:
    """With or without scheme and port, and in both families."""
    cases = {
        "": None,
        "head.ns.svc.cluster.local": "http://head.ns.svc.cluster.local:8265",
        "https://head": "https://head:8265",
        "http://10.0.0.1:9000": "http://10.0.0.1:9000",
        "fd00::1": "http://[fd00::1]:8265",
        "[fd00::1]:9000": "http://[fd00::1]:9000",
    }
    assert {text: operators_address(Settings(fq_ray_ip=text)) for text in cases} == cases
