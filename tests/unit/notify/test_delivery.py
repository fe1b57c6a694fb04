"""One notification to one receiver: what it gets, and where notifications never go."""

import asyncio
import ipaddress
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayhistory.errors import InvalidSetting
from rayhistory.notify import delivery
from rayhistory.notify.delivery import DeliveryFailed, deliver, is_public
from rayhistory.notify.notification import Notification
from rayhistory.notify.notify_rules import NotifyRule, read_rules
from rayhistory.notify.payloads import signature
from support.cli_call import Command
from support.webhook_receiver import WebhookReceiver, webhook_receiver

HOSTILE = "<!channel> @here <http://evil|click> `rm` *bold* & ValueError"
EVENT = Notification(
    id="a" * 32, kind="failed", namespace="default", cluster="demo", session="s", name=HOSTILE, at_ms=2**60,
    code="user_exception", headline=HOSTILE, new_failure=True, path="/s/default/demo/s/",
)  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


def send(**values: Any) -> None:
    rule = NotifyRule(name="ops", **{"allow_networks": ["127.0.0.1"], **values})
    asyncio.run(deliver(rule, EVENT, "https://history.example.com"))


def test_webhook_is_signed(receiver: WebhookReceiver, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    send(webhook=receiver.url, secret_file=str(tmp_path / "secret"))
    ((headers, body),) = receiver.requests
    expected = signature(b"s3cret", EVENT.id, int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == expected
    assert json.loads(body)["time"].startswith("9999")  # a clock far in the future


def test_slack_message_has_no_mentions_links_or_text_from_logs(receiver: WebhookReceiver) -> None:
    send(slack=receiver.url)
    send(slack=receiver.url, include_text=True)
    first, second = (json.loads(body)["text"] for _, body in receiver.requests)
    for text in (first, second):
        assert "<!channel>" not in text
        assert "@here" not in text
        assert "<http://evil" not in text
    assert first.count("ValueError") == 1  # the name of the run
    assert second.count("ValueError") == 2


def test_url_can_be_a_secret_file(receiver: WebhookReceiver, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(receiver.url + "\n")
    send(slack="file", url_file=str(tmp_path / "url"))
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", [302, 307, 400, 500])
def test_other_answers_fail_and_redirects_are_not_followed(receiver: WebhookReceiver, status: int) -> None:
    receiver.statuses = [status]
    with pytest.raises(DeliveryFailed, match=str(status)):
        send(webhook=receiver.url)
    assert len(receiver.requests) == 1


def test_receiver_that_hangs_fails(receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_TIMEOUT_S", 0.1)
    receiver.delay_s = 0.5
    with pytest.raises(DeliveryFailed, match="no response from the receiver"):
        send(webhook=receiver.url)


def test_loopback_is_refused_unless_listed(receiver: WebhookReceiver) -> None:
    for networks in ([], ["10.0.0.0/8"]):
        with pytest.raises(DeliveryFailed, match="not a public address"):
            send(webhook=receiver.url, allow_networks=networks)
    with pytest.raises(DeliveryFailed, match="not a public address"):
        send(webhook=receiver.url.replace("127.0.0.1", "localhost"), allow_networks=[])
    assert not receiver.requests


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254", "fe80::1", "fd00::1", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "240.0.0.1"],
)  # fmt: skip
def test_addresses_of_private_networks_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_public_addresses_are_public() -> None:
    assert is_public(ipaddress.ip_address("93.184.216.34"))
    assert is_public(ipaddress.ip_address("2606:2800:220:1::1"))


def test_command_gets_the_event_on_standard_input_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    out = tmp_path / "out"
    code = (
        "import sys, os, json, pathlib\n"
        f"pathlib.Path({str(out)!r}).write_text(json.dumps([sys.argv, sys.stdin.read(), dict(os.environ)]))"
    )
    send(command=[sys.executable, "-c", code], allow_networks=[])
    argv, event, environ = json.loads(out.read_text())
    assert argv == ["-c"]
    assert json.loads(event)["id"] == EVENT.id
    assert "AWS_SECRET_ACCESS_KEY" not in environ


def test_command_that_fails_hangs_or_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_COMMAND_TIMEOUT_S", 0.2)
    for command, message in (
        (["false"], "status 1"), (["sleep", "60"], "did not exit"), (["/no/such/command"], "cannot run")
    ):  # fmt: skip
        with pytest.raises(DeliveryFailed, match=message):
            send(command=command, allow_networks=[])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rule = 1", "rule"),
        ('[[rule]]\nname = "a"', "give one of webhook, slack and command"),
        ('[[rule]]\nname = "A b"\nwebhook = "https://x"', "matching regex"),
        ('[[rule]]\nname = "a"\nwebhook = "ftp://x"', "not an http or https URL"),
        ('[[rule]]\nname = "a"\nwebhook = "https://x"\nevents = ["exploded"]', "exploded"),
        ('[[rule]]\nname = "a"\nwebhook = "https://x"\nsecret_file = "/no/such"', "no file /no/such"),
        ('[[rule]]\nname = "a"\nwebhook = "https://x"\nallow_networks = ["x"]', "allow_networks of rule a"),
        ('[[rule]]\nname = "a"\nwebhook = "https://x"\nwebhok = 1', "webhok"),
        ('[[rule]]\nname = "a"\nwebhook = "https://x"\n[[rule]]\nname = "a"\nwebhook = "https://x"', "same name"),
        ("[[", "Invalid initial character"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_of_rules_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(InvalidSetting, match=problem):
        read_rules(str(tmp_path / "rules.toml"))


def test_notify_test_says_which_receivers_took_it(
    receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[rule]]\nname = "good"\nwebhook = "{receiver.url}"\nallow_networks = ["127.0.0.1"]\n'
        '[[rule]]\nname = "bad"\ncommand = ["false"]\n'
    )
    rayhistory = Command(tmp_path, monkeypatch, capfd)
    done = rayhistory("notify", "test", "--notify-rules", str(rules))
    assert done.code == 1
    assert "good: delivered" in done.out
    assert "bad: not delivered: false exited with status 1" in done.out
    assert "no rule 'x'" in rayhistory.bad("notify", "test", "--notify-rules", str(rules), "--rule", "x")
    assert "no notification rules" in rayhistory.bad("notify", "test")
