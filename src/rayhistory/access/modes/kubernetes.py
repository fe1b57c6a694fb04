"""Visitors with tokens of Kubernetes: the API says whose a token is, and whether its holder may see RayClusters.

Both answers are kept for a short while, and a token never beyond its own end. What cannot be asked is not allowed.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import HTTPConnection

from rayhistory.access.visitor import INVALID, Visitor, needed_token
from rayhistory.errors import AccessUnknown, KubernetesError, NotSignedIn
from rayhistory.kubeapi import KubeApi

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_KEPT = 30.0
_KEPT_REFUSAL = 5.0
_MOST_KEPT = 20_000
_AT_ONCE = 16
_EVERYWHERE = ""

T = TypeVar("T")


class Remembered(Generic[T]):
    """Answers, for the seconds that come with each; those who ask the same at the same time share the asking."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        until, answer = self._known.get(key, (0.0, None))
        if answer is not None and time.monotonic() < until:
            return answer
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key, ask))
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(asking)

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        answer, seconds = await ask()
        self._known[key] = time.monotonic() + seconds, answer
        self._known.move_to_end(key)
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return answer


class _Reviewed(msgspec.Struct, frozen=True):
    visitor: Visitor | None


class KubernetesAccess:
    takes_tokens = True

    def __init__(self, api: KubeApi, audiences: tuple[str, ...] = ()) -> None:
        self._api = api
        self._audiences = audiences
        self._visitors: Remembered[_Reviewed] = Remembered()
        self._rights: Remembered[bool] = Remembered()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        token = needed_token(connection)
        key = hashlib.sha256(token.encode()).digest()
        reviewed = await self._visitors.get(key, lambda: self._review_token(token))
        if reviewed.visitor is None:
            raise NotSignedIn(INVALID, wrong=True)
        return reviewed.visitor

    async def _review_token(self, token: str) -> tuple[_Reviewed, float]:
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        status = await self._review(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", spec)
        meant = not self._audiences or bool(set(self._audiences) & set(status.get("audiences") or ()))
        user = status.get("user")
        if status.get("authenticated") is not True or not meant or not isinstance(user, dict):
            return _Reviewed(None), _KEPT_REFUSAL
        if not user.get("username"):
            return _Reviewed(None), _KEPT_REFUSAL
        visitor = Visitor(
            name=str(user["username"]),
            uid=str(user.get("uid") or ""),
            groups=tuple(user.get("groups") or ()),
            extra=tuple((name, tuple(values)) for name, values in (user.get("extra") or {}).items()),
        )
        return _Reviewed(visitor), max(0.0, min(_KEPT, seconds_left(token)))

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        """Whoever may see the RayClusters of all namespaces is asked about no single one."""
        return await self._may(visitor, _EVERYWHERE) or await self._may(visitor, namespace)

    async def _may(self, visitor: Visitor, namespace: str) -> bool:
        async def ask() -> tuple[bool, float]:
            async with self._turns:
                spec = {
                    "user": visitor.name,
                    "uid": visitor.uid,
                    "groups": list(visitor.groups),
                    "extra": {name: list(values) for name, values in visitor.extra},
                    "resourceAttributes": {
                        "group": "ray.io", "resource": "rayclusters", "verb": "get", "namespace": namespace,
                    },
                }  # fmt: skip
                status = await self._review(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
            allowed = status.get("allowed") is True and status.get("denied") is not True
            return allowed, _KEPT if allowed else _KEPT_REFUSAL

        return await self._rights.get((visitor, namespace), ask)

    async def _review(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._api.post(path, {"apiVersion": version, "kind": kind, "spec": spec})
        except KubernetesError as error:
            raise AccessUnknown(f"it cannot be checked now who may see this: {error}") from None
        status = answer.get("status")
        return status if isinstance(status, dict) else {}


def seconds_left(token: str) -> float:
    """How long a token is still good, if it says so itself."""
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, msgspec.DecodeError):
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"]) - time.time()
    return _KEPT
