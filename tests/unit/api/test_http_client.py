"""`HistoryClient` recognizes errors by their code, never by their message."""

import asyncio

import httpx
import pytest

from rayhistory.api import http_client as client
from rayhistory.api.http_client import HistoryClient, RayResponse
from rayhistory.errors import ERROR_HEADER, RayHistoryError, SessionNotIndexed


def get(*responses: httpx.Response) -> RayResponse:
    replies = iter(responses)
    transport = httpx.MockTransport(lambda request: next(replies))

    async def request() -> RayResponse:
        async with httpx.AsyncClient(transport=transport, base_url="http://history") as http:
            return await HistoryClient(http, "/s/ns/c/s/").json("api/v0/tasks", RayResponse)

    return asyncio.run(request())


def test_client_waits_while_the_session_is_being_indexed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_RETRY_INTERVAL_S", 0.0)
    busy = httpx.Response(503, headers={ERROR_HEADER: SessionNotIndexed.code}, json={"msg": "any message"})
    assert get(busy, busy, httpx.Response(200, json={"data": {"result": 1}})).data == {"result": 1}
    assert capsys.readouterr().err == "rayhistory: any message\n" * 2


def test_client_does_not_wait_for_other_errors() -> None:
    error = {"error": {"status": 503, "code": "store_unavailable", "message": "This session is being indexed"}}
    with pytest.raises(RayHistoryError, match="This session is being indexed"):
        get(httpx.Response(503, headers={ERROR_HEADER: "store_unavailable"}, json=error))
