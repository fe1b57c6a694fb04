"""A minimal client of the Kubernetes API: get and post JSON, and watch lists."""

import base64
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from rayhistory.errors import InvalidSetting, KubernetesError
from rayhistory.settings import Settings

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = httpx.Timeout(5.0)
_TOKEN_TTL_S = 30.0
_MAX_LINE_BYTES = 16 << 20

Token = Callable[[], str]


class KubernetesApi:
    """Calls the API server. `token` is called before every request, because service account tokens are rotated."""

    def __init__(self, server: str, token: Token, verify: ssl.SSLContext | bool = True) -> None:
        self.server = server.rstrip("/")
        self.verify = verify
        self._token = token
        self._http = httpx.AsyncClient(base_url=self.server, verify=verify, timeout=_TIMEOUT, trust_env=False)

    def headers(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        return await self._call("GET", path, params=params)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", path, json=body)

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, headers=self.headers(), **options)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        _check_status(response.status_code, response.content, path)
        return _decode(response.content)

    async def watch(
        self, path: str, idle_timeout: float, on_open: Callable[[], None], **params: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield watch events until the API ends the watch. Fail after `idle_timeout` seconds without an event."""
        timeout = httpx.Timeout(_TIMEOUT.connect, read=idle_timeout)
        try:
            async with self._http.stream(
                "GET", path, params={**params, "watch": "true"}, headers=self.headers(), timeout=timeout
            ) as response:
                if response.status_code != 200:
                    _check_status(response.status_code, await response.aread(), path)
                on_open()
                async for line in _lines(response):
                    yield _decode(line)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> KubernetesError:
        return KubernetesError(f"Kubernetes API at {self.server} is unreachable: {error or type(error).__name__}")

    async def close(self) -> None:
        await self._http.aclose()


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    partial = b""
    async for block in response.aiter_bytes():
        *lines, partial = (partial + block).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(partial) > _MAX_LINE_BYTES:
            raise KubernetesError(f"Kubernetes API sent an object larger than {_MAX_LINE_BYTES} bytes")


def _check_status(status: int, body: bytes, path: str) -> None:
    if status // 100 == 2:
        return
    message = f"{path} returned {status}"
    with contextlib.suppress(KubernetesError):
        message = str(_decode(body).get("message") or message)
    raise KubernetesError(f"Kubernetes API returned an error: {message}", status)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        raise KubernetesError("Kubernetes API did not return a JSON object")
    return document


def open_kubernetes(settings: Settings) -> KubernetesApi | None:
    """Connect with `--kubeconfigs`, else with the pod's service account; None outside of Kubernetes."""
    if settings.kubeconfigs:
        return _from_kubeconfig(Path(settings.kubeconfigs).expanduser())
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (_SERVICE_ACCOUNT / "token").is_file():
        return None
    authority = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT / "ca.crt"))
    return KubernetesApi(
        f"https://{f'[{host}]' if ':' in host else host}:{port}", token_file(_SERVICE_ACCOUNT / "token"), authority
    )


def token_file(path: Path) -> Token:
    """Return a function that reads a token from a file, at most every 30 seconds."""
    cached, read_at = "", float("-inf")

    def token() -> str:
        nonlocal cached, read_at
        if time.monotonic() - read_at > _TOKEN_TTL_S:
            with contextlib.suppress(OSError):
                cached = path.read_text().strip()
            read_at = time.monotonic()
        return cached

    return token


def _from_kubeconfig(path: Path) -> KubernetesApi:
    try:
        config = _read_kubeconfig(path)
        context = _item_named(config["contexts"], config["current-context"])["context"]
        cluster = _item_named(config["clusters"], context["cluster"])["cluster"]
        user = _item_named(config.get("users") or [], context.get("user", "")).get("user") or {}
        server = str(cluster["server"])
        static_token = str(user.get("token") or "")
        token = token_file(path.parent / user["tokenFile"]) if "tokenFile" in user else lambda: static_token
        verify = _tls_context(path, cluster, user)
    except KeyError as error:
        raise InvalidSetting(f"--kubeconfigs={path}: {error} is missing") from None
    except (TypeError, AttributeError):
        raise InvalidSetting(f"--kubeconfigs={path}: not a kubeconfig") from None
    if "exec" in user or "auth-provider" in user:
        raise InvalidSetting(
            f"--kubeconfigs={path}: exec and auth-provider are not supported, use a token or a client certificate"
        )
    return KubernetesApi(server, token, verify)


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidSetting(f"--kubeconfigs={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        config = msgspec.json.decode(text)
    except msgspec.DecodeError:
        config = _parse_yaml(path, text)
    if not isinstance(config, dict):
        raise InvalidSetting(f"--kubeconfigs={path}: not a kubeconfig")
    return config


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise InvalidSetting(f"--kubeconfigs={path}: install PyYAML, or write the file as JSON") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def _item_named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((item for item in items if item.get("name") == name), {})


def _tls_context(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext | bool:
    try:
        authority = _read_data(path, cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate = _read_data(path, user, "client-certificate")
        if certificate:
            with tempfile.NamedTemporaryFile() as pem:  # Python loads certificates from files only
                pem.write(certificate + b"\n" + _read_data(path, user, "client-key"))
                pem.flush()
                context.load_cert_chain(pem.name)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"--kubeconfigs={path}: {error}") from None
    return context


def _read_data(config: Path, section: dict[str, Any], name: str) -> bytes:
    """Read a value that is inline (`…-data`), or in a file whose path is relative to the kubeconfig."""
    if section.get(f"{name}-data"):
        return base64.b64decode(section[f"{name}-data"])
    return (config.parent / section[name]).read_bytes() if section.get(name) else b""
