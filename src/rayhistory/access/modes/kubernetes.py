"""`--auth=kubernetes`: TokenReview identifies the visitor, SubjectAccessReview checks access to RayClusters.

Reviews are cached for a short time, but never beyond the expiry of their token. If the API server is unreachable,
requests get 503.
"""

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import HTTPConnection

from rayhistory.access.visitor import INVALID, Visitor, required_token
from rayhistory.errors import AccessCheckFailed, InvalidToken, KubernetesError
from rayhistory.kubernetes_api import KubernetesApi
from rayhistory.lru import LruCache

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ALLOWED_TTL_S = 30.0
_DENIED_TTL_S = 5.0
_MAX_CACHED_REVIEWS = 20_000
_MAX_CONCURRENT_REVIEWS = 16
_ALL_NAMESPACES = ""

T = TypeVar("T")


class ReviewCache(Generic[T]):
    """Caches reviews, each for its own number of seconds. Concurrent callers share one review."""

    def __init__(self) -> None:
        self._reviews: LruCache[Hashable, T] = LruCache(_MAX_CACHED_REVIEWS)
        self._pending: dict[Hashable, asyncio.Task[T]] = {}

    async def get(self, key: Hashable, review: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        cached = self._reviews.get(key)
        if cached is not None:
            return cached
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = asyncio.create_task(self._review(key, review))
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
        return await asyncio.shield(pending)

    async def _review(self, key: Hashable, review: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        result, ttl = await review()
        self._reviews.put(key, result, ttl=ttl)
        return result


class _ReviewedToken(msgspec.Struct, frozen=True):
    visitor: Visitor | None


class KubernetesAccess:
    takes_tokens = True

    def __init__(self, api: KubernetesApi, audiences: tuple[str, ...] = ()) -> None:
        self._api = api
        self._audiences = audiences
        self._tokens: ReviewCache[_ReviewedToken] = ReviewCache()
        self._rights: ReviewCache[bool] = ReviewCache()
        self._token_slots = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)  # their own: anyone can send invalid tokens
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        token = required_token(connection)
        key = hashlib.sha256(token.encode()).digest()
        reviewed = await self._tokens.get(key, lambda: self._review_token(token))
        if reviewed.visitor is None:
            raise InvalidToken(INVALID)
        return reviewed.visitor

    async def _review_token(self, token: str) -> tuple[_ReviewedToken, float]:
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        async with self._token_slots:
            status = await self._review(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", spec)
        for_us = not self._audiences or bool(set(self._audiences) & set(status.get("audiences") or ()))
        user = status.get("user")
        if status.get("authenticated") is not True or not for_us or not isinstance(user, dict):
            return _ReviewedToken(None), _DENIED_TTL_S
        if not user.get("username"):
            return _ReviewedToken(None), _DENIED_TTL_S
        visitor = Visitor(
            name=str(user["username"]),
            uid=str(user.get("uid") or ""),
            groups=tuple(user.get("groups") or ()),
            extra=tuple((name, tuple(values)) for name, values in (user.get("extra") or {}).items()),
        )
        return _ReviewedToken(visitor), max(0.0, min(_ALLOWED_TTL_S, seconds_until_expiry(token)))

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        """Check access to all namespaces first. A visitor with such access needs no review per namespace."""
        return await self._may_get(visitor, _ALL_NAMESPACES) or await self._may_get(visitor, namespace)

    async def _may_get(self, visitor: Visitor, namespace: str) -> bool:
        async def review() -> tuple[bool, float]:
            async with self._slots:
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
            return allowed, _ALLOWED_TTL_S if allowed else _DENIED_TTL_S

        return await self._rights.get((visitor, namespace), review)

    async def _review(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._api.post(path, {"apiVersion": version, "kind": kind, "spec": spec})
        except KubernetesError as error:
            raise AccessCheckFailed(f"cannot check access now, retry later: {error}") from None
        status = response.get("status")
        return status if isinstance(status, dict) else {}


def seconds_until_expiry(token: str) -> float:
    """Return the seconds until a JWT expires; without an expiry, the seconds for which a granted review is cached."""
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, msgspec.DecodeError):
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"]) - time.time()
    return _ALLOWED_TTL_S
