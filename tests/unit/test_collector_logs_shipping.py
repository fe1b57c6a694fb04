"""Packs on their way: outages, cancellation, two layouts, and the logs of sessions that were over before."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector import leftovers as leftovers_module
from rayhistory.collector import logs as logs_module
from rayhistory.collector import tail
from rayhistory.collector.leftovers import Leftovers
from rayhistory.collector.logs import LogFile, Shipper, by_value, make_shipper
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.shipping import PackShipper
from rayhistory.collector.walk import open_inside
from rayhistory.collector.watch import Watch
from rayhistory.errors import StoreUnavailable
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.packread import PackReader
from rayhistory.server.logfiles import AllLogs, PackLogs, plain_logs
from rayhistory.settings import COLLECTOR, Settings, resolve
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
REF = SessionRef("default", "test", SESSION)
LAYOUT = Layout()


class Moody(LocalStore):
    """A real store that fails, hangs, or takes the object and loses the answer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.moods: list[str] = []
        self.puts: list[str] = []

    async def put(self, key: str, data: bytes | Path) -> None:
        mood = self.moods.pop(0) if self.moods else "fine"
        if mood == "fail":
            raise StoreUnavailable("not now")
        if mood == "hang":
            await asyncio.sleep(60)
        await super().put(key, data)
        self.puts.append(key)
        if mood == "lose the answer":
            raise StoreUnavailable("reset")


class Case:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.logs = home / "ray" / SESSION / "logs"
        self.logs.mkdir(parents=True)
        self.store = Moody(home / "store")
        self.node = NODE
        self.metrics = Metrics()

    def shipper(self, interval: float = 0.05) -> PackShipper:
        return PackShipper(
            self.logs,
            self.store,
            lambda: LAYOUT.node_packs_prefix(REF, self.node),
            self.metrics,
            interval=interval,
        )

    def append(self, name: str, text: str) -> None:
        path = self.logs / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    async def stored(self, node: str = NODE) -> dict[str, str]:
        reader = PackReader(self.store, LAYOUT.node_packs_prefix(REF, node))
        await reader.refresh()
        return {name: (await reader.read(name, 0, 1 << 30)).decode() for name in reader.names}

    async def until_stored(self, name: str, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in (await self.stored()).get(name, ""):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def run(tmp_path: Path, work: Callable[[Case], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work(Case(tmp_path))

    asyncio.run(whole())


def settings(case: Case, **values: str) -> Settings:
    flags = {"setting_ray_tmp_root": str(case.home / "ray"), **{f"setting_{name}": v for name, v in values.items()}}
    return resolve(COLLECTOR, flags, {})[0]


def shipper_of(case: Case, **values: str) -> Shipper:
    return make_shipper(
        case.logs,
        settings(case, **values),
        case.store,
        case.metrics,
        packs_at=lambda: LAYOUT.node_packs_prefix(REF, NODE),
        key_of=lambda name: LAYOUT.log_key(REF, NODE, name),
    )


@contextlib.asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_what_is_appended_is_in_the_store_soon_after(tmp_path: Path) -> None:
    """Without anybody asking, and one object for all."""

    async def work(case: Case) -> None:
        async with running(case.shipper().run()):
            case.append("a.log", "one\n")
            await case.until_stored("a.log", "one")
            case.append("a.log", "two\n")
            case.append("sub/b.log", "three\n")
            await case.until_stored("sub/b.log", "three")
            await case.until_stored("a.log", "one\ntwo\n")

    run(tmp_path, work)


@pytest.mark.parametrize("mood", ["fail", "lose the answer"])
def test_an_outage_delays_and_loses_nothing(tmp_path: Path, mood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object is tried again, so that nothing is there twice."""

    async def work(case: Case) -> None:
        case.append("a.log", "one\n")
        case.store.moods = [mood, "fail", mood]
        shipper = case.shipper()
        async with running(shipper.flush(longest_pause=0.01)) as flush:
            case.append("a.log", "two\n")
            await flush
        await shipper.flush()
        assert await case.stored() == {"a.log": "one\ntwo\n"}
        assert len(set(case.store.puts)) <= 2
        assert b'upload_retries_total{kind="logs"} 3.0' in case.metrics.exposition()

    run(tmp_path, work)


def test_a_store_that_cannot_be_listed_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """An outage must not look like a node without packs: everything would be sent again."""

    async def work(case: Case) -> None:
        case.append("a.log", "one\n")
        await case.shipper().flush()
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").write_text("in the way")
        listing = case.store.list_folder

        async def unreachable(prefix: str) -> None:
            raise StoreUnavailable("no")

        case.store.list_folder = unreachable  # type: ignore[method-assign,assignment]
        async with running(case.shipper().flush(longest_pause=0.02)) as flush:
            await asyncio.sleep(0.1)
            (tmp_path / "store").unlink()
            (tmp_path / "away").rename(tmp_path / "store")
            case.store.list_folder = listing  # type: ignore[method-assign]
            await flush
        assert len(case.store.puts) == 1

    run(tmp_path, work)


def test_what_was_on_its_way_when_the_end_came_is_sent_first(tmp_path: Path) -> None:
    """The keeper cancels the loop, then asks for the rest: a pack that was made is not lost with its bytes."""

    async def work(case: Case) -> None:
        case.append("a.log", "one\n")
        case.store.moods = ["hang"]
        shipper = case.shipper()
        async with running(shipper.run()):
            await asyncio.sleep(0.3)
        case.append("a.log", "two\n")
        assert shipper.left() == ["a.log"]
        await shipper.finish()
        assert shipper.left() == []
        assert await case.stored() == {"a.log": "one\ntwo\n"}

    run(tmp_path, work)


def test_a_raylet_that_comes_back_with_another_id_has_its_own_packs(tmp_path: Path) -> None:
    """Under either id the files are whole."""

    async def work(case: Case) -> None:
        case.append("a.log", "one\n")
        shipper = case.shipper()
        await shipper.flush()
        case.node = "ab" * 28
        case.append("a.log", "two\n")
        await shipper.flush()
        assert await case.stored() == {"a.log": "one\n"}
        assert await case.stored("ab" * 28) == {"a.log": "one\ntwo\n"}

    run(tmp_path, work)


def test_without_inotify_time_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's limits are often used up by others."""

    def none_left(**_: object) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr("rayhistory.collector.watch.INotify", none_left)

    async def work(case: Case) -> None:
        with Watch() as watch:
            watch.follow([str(tmp_path)])
            assert not await watch.wait(0.01)
        async with running(case.shipper().run()):
            case.append("a.log", "one\n")
            await case.until_stored("a.log", "one")

    run(tmp_path, work)


def test_news_of_files_come_before_the_time_is_over(tmp_path: Path) -> None:
    async def work(case: Case) -> None:
        with Watch() as watch:
            watch.follow([str(case.logs)])
            news = asyncio.ensure_future(watch.wait(10))
            await asyncio.sleep(0.05)
            case.append("a.log", "x")
            assert await asyncio.wait_for(news, 5)

    run(tmp_path, work)


# Layouts


def test_the_most_valuable_files_come_first() -> None:
    """When the grace period is short, the drivers of jobs and what complained are there."""
    sizes = {
        "raylet.out": 5,
        "worker-a-1-2.out": 9000,
        "worker-a-1-2.err": 10,
        "worker-b-1-3.out": 1,
        "worker-b-1-3.err": 0,
        "job-driver-x.log": 10**6,
    }
    files = [LogFile(name, name, size, 0) for name, size in sizes.items()]
    assert [file.name for file in by_value(files)] == [
        "job-driver-x.log",
        "worker-a-1-2.err",
        "worker-a-1-2.out",
        "worker-b-1-3.err",
        "worker-b-1-3.out",
        "raylet.out",
    ]


@pytest.mark.parametrize(("layout", "packs", "plain"), [("both", 1, 1), ("packs", 1, 0), ("plain", 0, 2)])
def test_the_layout_can_be_chosen(tmp_path: Path, layout: str, packs: int, plain: int) -> None:
    """With both, files up to the limit are also written whole; reading gives the same whichever it is."""

    async def work(case: Case) -> None:
        case.append("small.log", "small\n")
        case.append("large.log", "large\n" * 1000)
        shipper = shipper_of(case, log_layout=layout, log_plain_limit="1k")
        await shipper.finish()
        assert shipper.left() == []
        assert sum(key.endswith(".pack") for key in case.store.puts) == packs
        assert sum(not key.endswith(".pack") for key in case.store.puts) == plain
        logs = AllLogs(*plain_logs(case.store, LAYOUT, REF), PackLogs(case.store, LAYOUT, REF))
        assert await logs.nodes() == [NODE]
        assert [(file.path, file.size) for file in await logs.files(NODE)] == [("large.log", 6000), ("small.log", 6)]
        assert await logs.read(NODE, "large.log", 6, 12) == b"large\n"
        assert await logs.read(NODE, "small.log", 0, 100) == b"small\n"

    run(tmp_path, work)


def test_a_log_that_cannot_be_read_or_named_does_not_keep_the_session_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of. An outage is still waited for."""

    def open_some(root: str, name: str) -> int:
        if name == "closed.log":
            raise PermissionError(13, "Permission denied", name)
        return open_inside(root, name)

    monkeypatch.setattr(logs_module, "open_inside", open_some)
    monkeypatch.setattr(tail, "open_inside", open_some)

    async def work(case: Case) -> None:
        for name in ("fine.log", "closed.log", "a\nb.log"):
            case.append(name, f"{name}\n")
        shipper = shipper_of(case)
        case.store.moods = ["fine", *["fail"] * 4]
        await asyncio.wait_for(shipper.finish(), 30)
        assert shipper.left() == ["a\nb.log", "closed.log"]
        assert case.store.puts[1:] == [LAYOUT.log_key(REF, NODE, "fine.log")]
        assert await case.stored() == {"fine.log": "fine.log\n", "a\nb.log": "a\nb.log\n", "closed.log": ""}

    run(tmp_path, work)


@pytest.mark.parametrize("layout", ["both", "packs", "plain"])
def test_more_files_than_can_be_followed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Their number must not be what the collector's memory depends on."""
    for module in (logs_module, tail):
        monkeypatch.setattr(module, "MOST_FILES", 5)

    async def work(case: Case) -> None:
        for number in range(8):
            case.append(f"{number}.log", "x\n")
        shipper = shipper_of(case, log_layout=layout)
        await shipper.finish()
        (left,) = shipper.left()
        assert left.startswith("(3 more")
        assert b"rayhistory_collector_log_files_beyond 3.0" in case.metrics.exposition()
        for size in (2, 7):
            logs = AllLogs(*plain_logs(case.store, LAYOUT, REF), PackLogs(case.store, LAYOUT, REF))
            followed = await logs.files(NODE)
            assert [file.size for file in followed] == [size] * 5
            for file in followed:
                case.append(file.path, "more\n")
            await shipper.finish()

    run(tmp_path, work)


# Left-overs


def aged(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def leftovers(case: Case, kept: dict[str, str | None] | None = None, **values: str) -> Leftovers:
    return Leftovers(
        settings(case, **values),
        case.store,
        LAYOUT,
        case.metrics,
        spool=case.home / "spool",
        ref_of=lambda session: SessionRef("default", "test", session),
        kept=lambda: kept or {},
    )


def test_a_session_that_was_over_before_is_filed_under_its_own_node_once(tmp_path: Path) -> None:
    """The id is in the port files or at the beginning of the raylet's log, also of one that was rotated."""

    async def work(case: Case) -> None:
        other = "session_2026-11-14_00-00-00_000000_1"
        case.append("raylet.out", "x\n")
        (case.logs.parent / f"metrics_export_port_{NODE}").touch()
        old = case.home / "ray" / other / "logs"
        old.mkdir(parents=True)
        (old / "raylet.out").write_text("later\n")
        (old / "raylet.1.out").write_text(f"[I] Raylet of id, {'ef' * 28} started. \n")
        aged(case.home / "ray")
        await leftovers(case, role="Head").ship_all()
        assert await case.stored() == {"raylet.out": "x\n"}
        files = await plain_logs(case.store, LAYOUT, SessionRef("default", "test", other))[0].files("ef" * 28)
        assert sorted(file.path for file in files) == ["raylet.1.out", "raylet.out"]
        assert f"cluster-metadata/raycluster/default_test/{SESSION}" in case.store.puts
        before = len(case.store.puts)
        await leftovers(case, role="Head").ship_all()
        assert len(case.store.puts) == before

    run(tmp_path, work)


def test_prev_logs_of_kuberay_are_picked_up(tmp_path: Path) -> None:
    async def work(case: Case) -> None:
        moved = case.home / "ray" / "prev-logs" / SESSION / NODE / "logs"
        moved.mkdir(parents=True)
        (moved / "a.log").write_text("moved\n")
        (case.home / "ray" / "prev-logs" / "not-a-session" / "x" / "logs").mkdir(parents=True)
        aged(case.home / "ray")
        await leftovers(case).ship_all()
        assert await case.stored() == {"a.log": "moved\n"}
        assert len({key.split("/")[4] for key in case.store.puts}) == 1

    run(tmp_path, work)


def test_what_is_young_or_kept_is_left_alone(tmp_path: Path) -> None:
    """A session that is about to start has no raylet yet."""

    async def work(case: Case) -> None:
        case.append("raylet.out", "x\n")
        await leftovers(case).ship_all()
        aged(case.home / "ray")
        await leftovers(case, {SESSION: NODE}).ship_all()
        assert case.store.puts == []

    run(tmp_path, work)


def test_a_session_that_turns_out_to_be_alive_is_let_go(tmp_path: Path) -> None:
    async def work(case: Case) -> None:
        case.append("raylet.out", "x\n")
        aged(case.home / "ray")
        case.store.moods = ["hang"]
        found = leftovers(case)
        async with running(found.ship_all()) as shipping:
            await asyncio.sleep(0.2)
            found.release(SESSION)
            await asyncio.wait_for(shipping, 5)
        assert case.store.puts == []
        assert not (case.home / "spool" / leftovers_module._MARKS).exists()

    run(tmp_path, work)


def test_a_session_that_an_earlier_collector_began_is_finished(tmp_path: Path) -> None:
    """Killed in the middle: only what is missing is sent."""

    async def work(case: Case) -> None:
        case.append("raylet.out", "x" * 100_000)
        await case.shipper().flush()
        case.append("raylet.out", "end\n")
        (case.logs.parent / f"metrics_export_port_{NODE}").touch()
        aged(case.home / "ray")
        await leftovers(case, log_layout="packs").ship_all()
        assert await case.stored() == {"raylet.out": "x" * 100_000 + "end\n"}
        assert len(case.store.puts) == 2

    run(tmp_path, work)
