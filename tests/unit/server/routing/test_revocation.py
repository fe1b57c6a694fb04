"""Requests whose visitor loses access while they wait. Streams and WebSockets: tests/hostile/test_visitor.py."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from rayhistory.access import Visitor
from rayhistory.access.trusted_proxies import TrustedProxies
from rayhistory.server.http.admission import Admission
from rayhistory.server.routing import revocation
from rayhistory.sessions.selection import Selection


class OneVisitor:
    """The seam of access modes: one visitor, who may or may not see all namespaces."""

    takes_tokens = True
    allowed = True

    async def visitor(self, connection: HTTPConnection) -> Visitor:
        return Visitor("ada")

    async def may_see(self, visitor: Visitor, namespace: str) -> bool:
        return self.allowed


async def wait_long(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 60)


async def time_out(scope: Scope, receive: Receive, send: Send) -> None:
    raise TimeoutError("of the route itself")


def serve(route: object, access: OneVisitor) -> TestClient:
    app = Starlette()
    app.state.admission = Admission(access, TrustedProxies(()), rate_limit=0)

    async def session(scope: Scope, receive: Receive, send: Send) -> None:
        selected = {**scope, "rayhistory.selection": Selection("default", "demo", "latest")}
        await revocation.serve_while_admitted(route, selected, receive, send)  # type: ignore[arg-type]

    app.mount("/", session)
    return TestClient(app)


def test_request_that_waits_is_refused_after_a_revocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation, "_RECHECK_INTERVAL_S", 0.01)
    access = OneVisitor()
    access.allowed = False
    assert serve(wait_long, access).get("/api/version").status_code == 403


def test_timeout_of_a_route_is_not_taken_for_a_revocation() -> None:
    with pytest.raises(TimeoutError, match="of the route itself"):
        serve(time_out, OneVisitor()).get("/api/version")
