"""The Kubernetes API, as little of it as is needed: JSON documents are read, reviews are posted, lists are watched."""

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

from rayhistory.errors import KubernetesError, Misconfigured
from rayhistory.settings import Settings

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATIENCE = httpx.Timeout(5.0)
_TOKEN_AGE = 30.0
_LARGEST_LINE = 16 << 20

Token = Callable[[], str]


class KubeApi:
    """`token` is asked before every request: tokens of service accounts change while a pod runs."""

    def __init__(self, server: str, token: Token, verify: ssl.SSLContext | bool = True) -> None:
        self.server = server.rstrip("/")
        self.verify = verify
        self._token = token
        self._http = httpx.AsyncClient(base_url=self.server, verify=verify, timeout=_PATIENCE, trust_env=False)

    def headers(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        return await self._call("GET", path, params=params)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", path, json=body)

    async def _call(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, headers=self.headers(), **given)
        except httpx.HTTPError as error:
            raise self._silent(error) from None
        _check(answer.status_code, answer.content, path)
        return _document(answer.content)

    async def watch(
        self, path: str, idle: float, opened: Callable[[], None], **params: str
    ) -> AsyncIterator[dict[str, Any]]:
        """What changes, as it changes; ends when the API ends it, or says nothing for longer than `idle` seconds."""
        timeout = httpx.Timeout(_PATIENCE.connect, read=idle)
        try:
            async with self._http.stream(
                "GET", path, params={**params, "watch": "true"}, headers=self.headers(), timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    _check(answer.status_code, await answer.aread(), path)
                opened()
                async for line in _lines(answer):
                    yield _document(line)
        except httpx.HTTPError as error:
            raise self._silent(error) from None

    def _silent(self, error: Exception) -> KubernetesError:
        return KubernetesError(f"the Kubernetes API at {self.server} does not answer: {error or type(error).__name__}")

    async def close(self) -> None:
        await self._http.aclose()


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for block in answer.aiter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > _LARGEST_LINE:
            raise KubernetesError("the Kubernetes API sends an object that is too large")


def _check(status: int, body: bytes, path: str) -> None:
    if status // 100 == 2:
        return
    message = f"{path} is answered with {status}"
    with contextlib.suppress(KubernetesError):
        message = str(_document(body).get("message") or message)
    raise KubernetesError(f"the Kubernetes API refuses: {message}", status)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        raise KubernetesError("the Kubernetes API answers with something that is no JSON object")
    return document


def find_kubernetes(settings: Settings) -> KubeApi | None:
    """By the kubeconfig that was named, else as the pod that this runs in; None where there is no Kubernetes."""
    if settings.kubeconfigs:
        return _from_kubeconfig(Path(settings.kubeconfigs).expanduser())
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (_ACCOUNT / "token").is_file():
        return None
    authority = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    return KubeApi(f"https://{f'[{host}]' if ':' in host else host}:{port}", token_in(_ACCOUNT / "token"), authority)


def token_in(path: Path) -> Token:
    """The file's content, read again every now and then."""
    known, read_at = "", float("-inf")

    def token() -> str:
        nonlocal known, read_at
        if time.monotonic() - read_at > _TOKEN_AGE:
            with contextlib.suppress(OSError):
                known = path.read_text().strip()
            read_at = time.monotonic()
        return known

    return token


def _from_kubeconfig(path: Path) -> KubeApi:
    try:
        config = _read(path)
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config.get("users") or [], context.get("user", "")).get("user") or {}
        server = str(cluster["server"])
        held = str(user.get("token") or "")
        token = token_in(path.parent / user["tokenFile"]) if "tokenFile" in user else lambda: held
        verify = _tls(path, cluster, user)
    except KeyError as error:
        raise Misconfigured(f"--kubeconfigs={path}: {error} is missing") from None
    except (TypeError, AttributeError):
        raise Misconfigured(f"--kubeconfigs={path}: not a kubeconfig") from None
    if "exec" in user or "auth-provider" in user:
        raise Misconfigured(f"--kubeconfigs={path}: use a token or a client certificate, not a program that makes them")
    return KubeApi(server, token, verify)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise Misconfigured(f"--kubeconfigs={path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        config = msgspec.json.decode(text)
    except msgspec.DecodeError:
        config = _yaml(path, text)
    if not isinstance(config, dict):
        raise Misconfigured(f"--kubeconfigs={path}: not a kubeconfig")
    return config


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise Misconfigured(f"--kubeconfigs={path}: install PyYAML, or write the file as JSON") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((item for item in items if item.get("name") == name), {})


def _tls(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext | bool:
    try:
        authority = _content(path, cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate = _content(path, user, "client-certificate")
        if certificate:
            with tempfile.NamedTemporaryFile() as both:  # Python loads certificates from files only
                both.write(certificate + b"\n" + _content(path, user, "client-key"))
                both.flush()
                context.load_cert_chain(both.name)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"--kubeconfigs={path}: {error}") from None
    return context


def _content(config: Path, holder: dict[str, Any], name: str) -> bytes:
    if holder.get(f"{name}-data"):
        return base64.b64decode(holder[f"{name}-data"])
    return (config.parent / holder[name]).read_bytes() if holder.get(name) else b""
