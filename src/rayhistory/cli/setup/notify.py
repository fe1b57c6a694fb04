"""`rayhistory notify test`: send a test notification to the receivers of the rules."""

import argparse
import asyncio
import time

from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.notify.delivery import deliver
from rayhistory.notify.notification import Notification, notification_id
from rayhistory.notify.notify_rules import NotifyRules, read_rules
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["test"], help="test: send a test notification now")
    parser.add_argument("--rule", metavar="NAME", help="only to the receiver of this rule (default: all)")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if not settings.notify_rules:
        raise UsageError("no notification rules: set --notify-rules FILE or RAYHISTORY_NOTIFY_RULES")
    rules = read_rules(settings.notify_rules)
    if arguments.rule and rules.named(arguments.rule) is None:
        raise UsageError(f"no rule {arguments.rule!r}: use one of {', '.join(rule.name for rule in rules.rule)}")
    return asyncio.run(_test(rules, arguments.rule))


async def _test(rules: NotifyRules, only: str | None) -> int:
    failed = False
    for rule in rules.rule:
        if only and rule.name != only:
            continue
        now_ms = int(time.time() * 1000)
        event = Notification(
            id=notification_id("test", rule.name, str(now_ms)), kind="failed", namespace="default", cluster="test",
            session="test", name="test of rayhistory notify", at_ms=now_ms, path="/runs",
        )  # fmt: skip
        try:
            await deliver(rule, event, rules.server_url)
        except RayHistoryError as error:
            failed = True
            print(f"{rule.name}: not delivered: {error}")
        else:
            print(f"{rule.name}: delivered")
    return 1 if failed else 0
