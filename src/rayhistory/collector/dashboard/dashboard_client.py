"""The Ray Dashboard of the session that this collector keeps, as a client."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec

from rayhistory import __version__, ids
from rayhistory.settings import Settings

log = logging.getLogger(__name__)

_PROJECTED_TOKEN = Path("/var/run/secrets/ray.io/serviceaccount/token")
_LARGE, _LARGEST_ANSWER = 2**20, 64 * 2**20
_LONGEST = 30.0  # the first question about Serve, Data or Train starts a driver inside Ray


class DashboardError(Exception):
    """The reason is a word or two."""


class _Version(msgspec.Struct):
    ray_version: str = ""
    session_name: str = ""


class Dashboard:
    """`found` looks up the address that the session's own dashboard has announced."""

    def __init__(self, settings: Settings, session: str, found: Callable[[], str | None]) -> None:
        self.address = settings.ray_dashboard_address.rstrip("/")
        self.verified = False
        self._configured = self.address
        self._settings = settings
        self._session = session
        self._found = found
        self._one_large = asyncio.Lock()
        self._http = httpx.AsyncClient(
            # Not a browser: for browsers Ray hides the values of environment variables.
            headers={"User-Agent": f"rayhistory-collector/{__version__}"},
            timeout=_LONGEST,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def verify(self) -> tuple[str, bytes]:
        """Ray's version, with the whole answer. Another cluster's dashboard may be at the usual address."""
        try:
            body = await self.get("/api/version")
            version = msgspec.json.decode(body, type=_Version)
        except (DashboardError, msgspec.MsgspecError) as error:
            await self._try_the_other_address()
            raise DashboardError(str(error)) from None
        if version.session_name and version.session_name != self._session:
            await self._try_the_other_address()
            raise DashboardError("other session")
        self.verified = True
        return version.ray_version, body

    async def _try_the_other_address(self) -> None:
        announced = await asyncio.to_thread(self._found)
        candidates = [self._configured, announced, operators_address(self._settings)]
        known = list(dict.fromkeys(address for address in candidates if address))
        here = known.index(self.address) if self.address in known else -1
        self.address = known[(here + 1) % len(known)]

    async def get(self, uri: str) -> bytes:
        """The body of a 200; DashboardError for everything else."""
        async with self.answer(uri) as body:
            return body

    @asynccontextmanager
    async def answer(self, uri: str) -> AsyncIterator[bytes]:
        """The same, for as long as it is used: of large ones, one at a time is in memory."""
        async with AsyncExitStack() as until_used:
            chunks: list[bytes] = []
            size = 0
            async for chunk in self.stream(uri):
                if size <= _LARGE < size + len(chunk):
                    await until_used.enter_async_context(self._one_large)
                size += len(chunk)
                if size > _LARGEST_ANSWER:
                    raise DashboardError("too large")
                chunks.append(chunk)
            body = b"".join(chunks)
            chunks.clear()
            yield body

    async def stream(self, uri: str) -> AsyncGenerator[bytes, None]:
        """The same in pieces."""
        try:
            async with self._http.stream("GET", self.address + uri, headers=await self._authorization()) as response:
                if response.status_code in {401, 403}:
                    raise DashboardError("authentication")
                if response.status_code != 200:
                    raise DashboardError(f"status {response.status_code}")
                async for chunk in response.aiter_bytes():
                    yield chunk
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self.verified = False
            raise DashboardError("no connection") from error

    async def _authorization(self) -> dict[str, str]:
        """As KubeRay's collector: the projected token, else the static one, else none."""
        settings = self._settings
        if settings.ray_enable_k8s_token_auth:
            try:
                token = (await asyncio.to_thread(_PROJECTED_TOKEN.read_text)).strip()
            except OSError:
                token = ""
        else:
            token = settings.ray_auth_token.strip()
        if not token and (settings.ray_enable_k8s_token_auth or settings.ray_auth_mode.lower() == "token"):
            raise DashboardError("no token")
        return {"x-ray-authorization": f"Bearer {token}"} if token else {}


class _Node(msgspec.Struct):
    node_id: str = ""
    node_ip: str = ""
    state: str = ""


class _Result(msgspec.Struct):
    result: list[_Node] = []


class _Data(msgspec.Struct):
    result: _Result


class _Nodes(msgspec.Struct):
    data: _Data


async def node_at(ip: str, settings: Settings) -> str | None:
    """The id of the node with this address, if the head that KubeRay's operator names can tell."""
    dashboard = Dashboard(settings, "", lambda: None)
    dashboard.address = operators_address(settings) or dashboard.address
    asked = f"/api/v0/nodes?limit=10000&filter_keys=node_ip&filter_predicates=%3D&filter_values={quote(ip, safe='')}"
    try:
        answer = msgspec.json.decode(await dashboard.get(asked), type=_Nodes)
    except (DashboardError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("the head does not say which node this is", extra={"reason": str(error)})
        return None
    finally:
        await dashboard.close()
    alive = (node for node in answer.data.result.result if node.node_ip == ip and node.state == "ALIVE")
    return next((ids.to_hex(node.node_id, ids.NODE) for node in alive), None)


def operators_address(settings: Settings) -> str | None:
    """The head as KubeRay's operator names it: `FQ_RAY_IP`, to which scheme and port may be missing."""
    host = settings.fq_ray_ip.strip().rstrip("/")
    if not host:
        return None
    scheme, separator, rest = host.rpartition("://")
    if ":" in rest and not rest.startswith("[") and rest.count(":") > 1:
        rest = f"[{rest}]"  # an address of version 6
    has_port = ":" in rest.rpartition("]")[2]
    return f"{scheme if separator else 'http'}://{rest}" + ("" if has_port else f":{settings.ray_dashboard_port}")
