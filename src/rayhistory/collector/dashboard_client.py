"""HTTP client for the Ray Dashboard of the session that is collected."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path

import httpx
import msgspec

from rayhistory import __version__
from rayhistory.settings import Settings

_PROJECTED_TOKEN = Path("/var/run/secrets/ray.io/serviceaccount/token")
_LARGE_BODY_BYTES = 2**20
_MAX_BODY_BYTES = 64 * 2**20
_MAX_VERSION_BYTES = 2**16
_TIMEOUT_S = 30.0  # the first request about Serve, Data or Train starts a driver inside Ray


class DashboardFailure(StrEnum):
    """Codes of the reasons for which a request can fail. They are also labels of a metric."""

    UNAUTHENTICATED = "unauthenticated"
    NO_TOKEN = "no_token"  # noqa: S105
    NO_CONNECTION = "no_connection"
    STATUS = "status"
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    OTHER_SESSION = "other_session"


_MESSAGES = {
    DashboardFailure.UNAUTHENTICATED: "authentication failed",
    DashboardFailure.NO_TOKEN: "no token",
    DashboardFailure.NO_CONNECTION: "no connection",
    DashboardFailure.STATUS: "status",
    DashboardFailure.TOO_LARGE: "response too large",
    DashboardFailure.UNREADABLE: "unreadable response",
    DashboardFailure.OTHER_SESSION: "dashboard of another session",
}


class DashboardError(Exception):
    """A request failed; the message is a short reason."""

    def __init__(self, code: DashboardFailure, detail: str = "", size: int = 0) -> None:
        super().__init__(f"{_MESSAGES[code]} {detail}".strip())
        self.code = code
        self.size = size
        """The number of received bytes of a response that was too large."""


class _Version(msgspec.Struct):
    ray_version: str = ""
    session_name: str = ""


class DashboardClient:
    """Requests to the dashboard of one session. `logged_address` returns the address that the dashboard has logged."""

    def __init__(self, settings: Settings, session: str, logged_address: Callable[[], str | None]) -> None:
        self.address = settings.ray_dashboard_address.rstrip("/")
        self.verified = False
        self._configured_address = self.address
        self._settings = settings
        self._session = session
        self._logged_address = logged_address
        self._large_body_lock = asyncio.Lock()
        self._http = httpx.AsyncClient(
            # Not a browser: for browsers Ray hides the values of environment variables.
            headers={"User-Agent": f"rayhistory-collector/{__version__}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def verify(self) -> tuple[str, bytes]:
        """Return Ray's version and the response body. Raise DashboardError if the dashboard belongs to another cluster.

        Every version of Ray that exports events also reports its session name. A response without it is not from a
        dashboard.
        """
        try:
            body = await self._get_version()
            version = msgspec.json.decode(body, type=_Version)
        except DashboardError:
            await self._switch_address()
            raise
        except msgspec.MsgspecError:
            await self._switch_address()
            raise DashboardError(DashboardFailure.UNREADABLE) from None
        if version.session_name != self._session:
            await self._switch_address()
            raise DashboardError(DashboardFailure.OTHER_SESSION)
        self.verified = True
        return version.ray_version, body

    async def _get_version(self) -> bytes:
        """Return the response of /api/version. Send the token only if a request without it was refused."""
        try:
            return await self._read("/api/version", {}, _MAX_VERSION_BYTES)
        except DashboardError as error:
            if error.code is not DashboardFailure.UNAUTHENTICATED:
                raise
        return await self._read("/api/version", await self._authorization(), _MAX_VERSION_BYTES)

    async def _switch_address(self) -> None:
        logged = await asyncio.to_thread(self._logged_address)
        candidates = [self._configured_address, logged, operator_dashboard_address(self._settings)]
        addresses = list(dict.fromkeys(address for address in candidates if address))
        position = addresses.index(self.address) if self.address in addresses else -1
        self.address = addresses[(position + 1) % len(addresses)]

    async def get(self, uri: str) -> bytes:
        """Return the body of a response with status 200; raise DashboardError for any other response.

        Unlike `open_response`, it does not limit how many large bodies its callers have in memory.
        """
        async with self.open_response(uri) as body:
            return body

    @asynccontextmanager
    async def open_response(self, uri: str) -> AsyncIterator[bytes]:
        """Yield the body of a response with status 200.

        Only one large body at a time is received and kept in memory: the next one waits until this context ends.
        """
        async with AsyncExitStack() as stack:
            chunks: list[bytes] = []
            size = 0
            async for chunk in self._stream(uri, await self._authorization(), _MAX_BODY_BYTES):
                if size <= _LARGE_BODY_BYTES < size + len(chunk):
                    await stack.enter_async_context(self._large_body_lock)
                size += len(chunk)
                chunks.append(chunk)
            body = b"".join(chunks)
            chunks.clear()
            yield body

    async def stream(self, uri: str) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response with status 200 in chunks."""
        async for chunk in self._stream(uri, await self._authorization()):
            yield chunk

    async def _read(self, uri: str, headers: dict[str, str], max_bytes: float) -> bytes:
        return b"".join([chunk async for chunk in self._stream(uri, headers, max_bytes)])

    async def _stream(
        self, uri: str, headers: dict[str, str], max_bytes: float = math.inf
    ) -> AsyncGenerator[bytes, None]:
        size = 0
        try:
            async with self._http.stream("GET", self.address + uri, headers=headers) as response:
                if response.status_code in {401, 403}:
                    raise DashboardError(DashboardFailure.UNAUTHENTICATED)
                if response.status_code != 200:
                    raise DashboardError(DashboardFailure.STATUS, str(response.status_code))
                async for chunk in response.aiter_bytes():
                    size += len(chunk)
                    if size > max_bytes:
                        raise DashboardError(DashboardFailure.TOO_LARGE, size=size)
                    yield chunk
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self.verified = False
            raise DashboardError(DashboardFailure.NO_CONNECTION) from error

    async def _authorization(self) -> dict[str, str]:
        """Return the header that KubeRay's collector sends: the projected token, else the static one, else none."""
        settings = self._settings
        if settings.ray_enable_k8s_token_auth:
            try:
                token = (await asyncio.to_thread(_PROJECTED_TOKEN.read_text)).strip()
            except OSError:
                token = ""
        else:
            token = settings.ray_auth_token.strip()
        if not token and (settings.ray_enable_k8s_token_auth or settings.ray_auth_mode.lower() == "token"):
            raise DashboardError(DashboardFailure.NO_TOKEN)
        return {"x-ray-authorization": f"Bearer {token}"} if token else {}


def operator_dashboard_address(settings: Settings) -> str | None:
    """Build the head's address from KubeRay's `FQ_RAY_IP`, which may lack a scheme and a port."""
    host = settings.fq_ray_ip.strip().rstrip("/")
    if not host:
        return None
    scheme, separator, rest = host.rpartition("://")
    if not rest.startswith("[") and rest.count(":") > 1:
        rest = f"[{rest}]"  # IPv6
    has_port = ":" in rest.rpartition("]")[2]
    return f"{scheme if separator else 'http'}://{rest}" + ("" if has_port else f":{settings.ray_dashboard_port}")
