"""Notifications from the run table to receivers: each at least once, with the same id, by one of several servers."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.errors import StoreUnavailable
from rayhistory.notify.notification import notifications_for
from rayhistory.notify.notifier import Notifier
from rayhistory.notify.notify_rules import NotifyRule, NotifyRules
from rayhistory.notify.outbox import GIVE_UP_AFTER_S, Outbox, OutboxEntry
from rayhistory.runs.run_table import RunTable
from rayhistory.storage.local import LocalStore
from support.generated_runs import DAY_MS, LAYOUT, announce, generated
from support.webhook_receiver import WebhookReceiver, webhook_receiver

NOW_MS = int(time.time() * 1000)


def failed(number: int, **values: Any) -> Any:
    defaults: dict[str, Any] = {"started_ms": NOW_MS - 3_600_000, "status": "FAILED", "fingerprint": "ab"}
    return generated(number, **(defaults | values))


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


def rules(receiver: WebhookReceiver, **values: Any) -> NotifyRules:
    rule = NotifyRule(name="ops", webhook=receiver.url, allow_networks=("127.0.0.0/8",), **values)
    return NotifyRules(rule=(rule,), server_url="https://history.example.com/")


def notifier(directory: Path, rules: NotifyRules, outcomes: list[str] | None = None) -> tuple[LocalStore, Notifier]:
    store = LocalStore(directory / "store")
    count = outcomes.append if outcomes is not None else lambda _: None
    return store, Notifier(rules, RunTable(store, LAYOUT, directory / "cache"), "auto", count)


async def send_after_start(store: LocalStore, works: Notifier, *summaries: Any) -> None:
    """Switch notifications on, then let sessions end."""
    await works.work()
    await announce(store, summaries)
    works._table._loaded_at = float("-inf")  # the table is read at most every two seconds
    await works.work()


def ids(receiver: WebhookReceiver) -> list[str]:
    return [json.loads(body)["id"] for _, body in receiver.requests]


def test_failed_run_is_sent_once_as_a_cloud_event(tmp_path: Path, receiver: WebhookReceiver) -> None:
    store, works = notifier(tmp_path, rules(receiver))

    async def work() -> None:
        await send_after_start(store, works, failed(1))
        await works.work()

    asyncio.run(work())
    ((headers, body),) = receiver.requests
    event = json.loads(body)
    assert headers["content-type"] == "application/cloudevents+json"
    assert headers["webhook-id"] == event["id"]
    assert (event["type"], event["specversion"]) == ("io.rayhistory.run.failed", "1.0")
    assert event["data"]["code"] == "user_exception"
    assert "headline" not in event["data"]  # text from the cluster
    assert event["data"]["url"].startswith("https://history.example.com/s/default/nightly-00001/")


def test_what_was_over_before_is_not_reported(tmp_path: Path, receiver: WebhookReceiver) -> None:
    store, works = notifier(tmp_path, rules(receiver))

    async def work() -> None:
        await announce(store, [failed(1)])
        await send_after_start(store, works, failed(2), failed(3, started_ms=NOW_MS - 60 * DAY_MS))

    asyncio.run(work())
    assert [json.loads(body)["data"]["cluster"] for _, body in receiver.requests] == ["nightly-00002"]


def test_session_with_a_clock_behind_is_reported(tmp_path: Path, receiver: WebhookReceiver) -> None:
    store, works = notifier(tmp_path, rules(receiver))
    asyncio.run(send_after_start(store, works, failed(1, started_ms=NOW_MS - 5 * DAY_MS)))
    assert len(receiver.requests) == 1


def test_rules_choose_namespaces_events_and_runs(receiver: WebhookReceiver) -> None:
    summaries = {each.summary.identity: each.summary for each in (failed(1), failed(2, namespace="team-a"))}
    found = notifications_for(summaries, run_key="auto", since_ms=0, known=())
    assert {each.namespace for each in found} == {"default", "team-a"}

    def chosen(**values: Any) -> set[str]:
        (rule,) = rules(receiver, **values).rule
        return {each.namespace for each in found if rule.matches(each)}

    assert chosen() == {"default", "team-a"}
    assert chosen(namespaces=["team-*"]) == {"team-a"}
    assert chosen(events=["recovered"]) == set()
    assert chosen(runs=["other"]) == set()


def test_receiver_that_fails_gets_it_again_later_with_the_same_id(tmp_path: Path, receiver: WebhookReceiver) -> None:
    outcomes: list[str] = []
    store, works = notifier(tmp_path, rules(receiver), outcomes)
    receiver.statuses = [500, 302]

    async def work() -> list[OutboxEntry]:
        await send_after_start(store, works, failed(1))
        outbox = Outbox(store, LAYOUT)
        assert await outbox.due(time.time()) == []  # not at once
        for _ in range(2):
            (waiting,) = await outbox.due(time.time() + 86_400)
            await outbox.keep(msgspec.structs.replace(waiting, next_attempt=0.0))
            await works.work()
        return await outbox.due(time.time() + 86_400)

    assert asyncio.run(work()) == []
    assert len(ids(receiver)) == 3
    assert len(set(ids(receiver))) == 1
    assert outcomes == ["failed", "failed", "sent"]


class Clock:
    """Stands for the module `time`, and is put forward by hand."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("answer", [500, 302, "hangs"])
def test_receiver_that_fails_for_a_day_gets_it_afterwards(
    tmp_path: Path, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch, answer: int | str
) -> None:
    """A day passes in the times of the outbox."""
    store, works = notifier(tmp_path, rules(receiver))
    clock = Clock()
    for module in ("notifier", "outbox"):
        monkeypatch.setattr(f"rayhistory.notify.{module}.time", clock)
    if answer == "hangs":
        monkeypatch.setattr("rayhistory.notify.delivery._TIMEOUT_S", 0.01)
        receiver.delay_s = 0.1
    else:
        receiver.statuses = [answer] * 1000  # type: ignore[list-item]

    async def work() -> float:
        await send_after_start(store, works, failed(1))
        began, outbox = clock.now, Outbox(store, LAYOUT)
        while clock.now - began < 86_400:
            (waiting,) = await outbox.due(float("inf"))
            clock.now = max(waiting.next_attempt, clock.now + 1)
            await works.work()
        receiver.statuses, receiver.delay_s = [], 0.0
        monkeypatch.setattr("rayhistory.notify.delivery._TIMEOUT_S", 10.0)
        (waiting,) = await outbox.due(float("inf"))
        clock.now = waiting.next_attempt
        await works.work()
        assert await outbox.due(float("inf")) == []
        return clock.now - began

    assert asyncio.run(work()) < 86_400 + 2 * 3600
    assert 20 < len(ids(receiver)) < 50
    assert len(set(ids(receiver))) == 1


def test_pauses_grow_and_end_after_three_days() -> None:
    notification = notifications_for(
        {failed(1).summary.identity: failed(1).summary}, run_key="auto", since_ms=0, known=()
    )[0]
    entry: OutboxEntry | None = OutboxEntry(rule="ops", notification=notification, created=0.0)
    now, pauses = 0.0, []
    while entry is not None and (later := entry.retry("refused", now)):
        pauses.append(later.next_attempt - now)
        entry, now = later, later.next_attempt
    assert pauses[:3] == [15.0, 30.0, 60.0]
    assert max(pauses) == 3600.0
    assert GIVE_UP_AFTER_S < now < GIVE_UP_AFTER_S + 3601


def test_server_killed_after_sending_sends_it_again_with_the_same_id(
    tmp_path: Path, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, works = notifier(tmp_path, rules(receiver))

    async def killed(*_: object) -> None:
        raise asyncio.CancelledError

    async def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Outbox, "done", killed)
            with contextlib.suppress(asyncio.CancelledError):
                await send_after_start(store, works, failed(1))
        _, other = notifier(tmp_path, rules(receiver))
        await other.work()
        await other.work()

    asyncio.run(work())
    assert len(ids(receiver)) == 2
    assert len(set(ids(receiver))) == 1


def test_two_servers_send_each_notification_once(tmp_path: Path, receiver: WebhookReceiver) -> None:
    store, first = notifier(tmp_path, rules(receiver))
    _, second = notifier(tmp_path, rules(receiver))

    async def work() -> None:
        await first.work()
        await announce(store, [failed(number) for number in range(5)])
        first._table._loaded_at = float("-inf")
        for _ in range(3):
            await asyncio.gather(first.work(), second.work())

    asyncio.run(work())
    assert len(ids(receiver)) == len(set(ids(receiver))) == 5


def test_damaged_entry_and_removed_rule_do_not_stop_the_others(tmp_path: Path, receiver: WebhookReceiver) -> None:
    store, works = notifier(tmp_path, rules(receiver))

    async def work() -> int:
        await store.put(LAYOUT.outbox_key("damaged"), b"{")
        await Outbox(store, LAYOUT).add(
            "gone",
            notifications_for({failed(9).summary.identity: failed(9).summary}, run_key="auto", since_ms=0, known=())[0],
        )
        await send_after_start(store, works, failed(1))
        return await Outbox(store, LAYOUT).waiting()

    assert asyncio.run(work()) == 0
    assert len(receiver.requests) == 1


def test_store_outage_delays_and_does_not_end_the_loop(
    tmp_path: Path, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, works = notifier(tmp_path, rules(receiver))
    real, calls = works.work, []

    async def work_with_outage() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoreUnavailable("the store is away")
        await real()
        if len(calls) == 2:
            await announce(store, [failed(1)])
            works._table._loaded_at = float("-inf")

    monkeypatch.setattr(works, "work", work_with_outage)

    async def run() -> None:
        task = asyncio.create_task(works.run(0.01))
        while not receiver.requests:  # noqa: ASYNC110 - another thread receives
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 30))
