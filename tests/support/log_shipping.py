"""A logs directory, a store with faults, and log shippers between them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from rayhistory.collector.logs.pack_shipper import PackShipper
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.shipper import Shipper, make_shipper
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreUnavailable
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import COLLECTOR, Settings, resolve
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
REF = SessionRef("default", "test", SESSION)
LAYOUT = Layout()

FAIL, HANG, LOSE_RESPONSE, SUCCEED = "fail", "hang", "lose the response", "succeed"


class FaultyStore(LocalStore):
    """A local store whose next PUTs fail, hang, or store the object and lose the response."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.faults: list[str] = []
        self.puts: list[str] = []

    async def put(self, key: str, data: bytes | Path) -> None:
        fault = self.faults.pop(0) if self.faults else SUCCEED
        if fault == FAIL:
            raise StoreUnavailable("unavailable")
        if fault == HANG:
            await asyncio.sleep(60)
        await super().put(key, data)
        self.puts.append(key)
        if fault == LOSE_RESPONSE:
            raise StoreUnavailable("connection reset")


class LogNode:
    """The session directory of one node, and its store."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ray_tmp_root = home / "ray"
        self.logs = self.ray_tmp_root / SESSION / "logs"
        self.logs.mkdir(parents=True)
        self.store = FaultyStore(home / "store")
        self.node_id = NODE
        self.telemetry = Telemetry()
        self.starts = SeriesStarts(PrivateDirectory(home / "spool"))

    def pack_shipper(self, interval: float = 0.05) -> PackShipper:
        return PackShipper(
            self.logs,
            self.store,
            lambda: LAYOUT.node_packs_prefix(REF, self.node_id),
            self.telemetry,
            starts=self.starts,
            interval=interval,
        )

    def configured_shipper(self, **values: str) -> Shipper:
        return make_shipper(
            self.logs,
            self.settings(**values),
            self.store,
            self.telemetry,
            starts=self.starts,
            packs_prefix=lambda: LAYOUT.node_packs_prefix(REF, NODE),
            key_of=lambda name: LAYOUT.log_key(REF, NODE, name),
        )

    def settings(self, **values: str) -> Settings:
        flags = {f"setting_{name}": value for name, value in values.items()}
        return resolve(COLLECTOR, {"setting_ray_tmp_root": str(self.ray_tmp_root), **flags}, {})[0]

    def append(self, name: str, text: str) -> None:
        path = self.logs / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    async def packed_files(self, node_id: str = NODE) -> dict[str, str]:
        reader = PackReader(self.store, LAYOUT.node_packs_prefix(REF, node_id))
        await reader.refresh()
        return {name: (await reader.read(name, 0, 1 << 30)).decode() for name in reader.files}

    async def wait_until_packed(self, name: str, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in (await self.packed_files()).get(name, ""):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def run_on_node(tmp_path: Path, work: Callable[[LogNode], Awaitable[None]]) -> None:
    async def run() -> None:
        await work(LogNode(tmp_path))

    asyncio.run(run())


@contextlib.asynccontextmanager
async def background(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
