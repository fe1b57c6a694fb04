"""Parsers for setting values. Each raises ValueError with a hint for the user."""

import re
from collections.abc import Callable
from pathlib import Path

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})

_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}

BACKEND_OF_SCHEME = {"file": "local", "s3": "s3", "gs": "gcs", "az": "azureblob", "oss": "aliyunoss"}
"""Backends by URL scheme. Another scheme is the name of its backend, so that installed plugins need no entry here."""


PRICED_RESOURCES = ("cpu", "gpu", "memory")
RUN_KEYS = ("auto", "owner", "name", "entrypoint", "cluster")


def parse_bool(text: str) -> bool:
    """Parse a boolean as Go's flag package does."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("use true or false")


def parse_duration(text: str) -> float:
    """Return seconds from a Go duration such as 30s, 5m or 1h30m."""
    parts = re.findall(r"([0-9.]+)(ns|us|ms|s|m|h)", text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError("use a duration such as 30s, 5m or 1h30m")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_size(text: str) -> int:
    """Return bytes from a Kubernetes quantity such as 512Mi, 2Gi or 2e9."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)", text)
    if not match:
        raise ValueError("use a size such as 512Mi or 2Gi")
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def parse_port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise ValueError("use a port number from 0 to 65535")
    return int(text)


def parse_number(text: str) -> int:
    if not text.isdigit():
        raise ValueError("use a whole number")
    return int(text)


def parse_positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise ValueError("use a whole number above 0")
    return int(text)


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def parse_http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    if not re.fullmatch(r"https?://[^/?#\s\\]+(/[^?#\s\\]*)?", url):
        raise ValueError("use a URL such as https://grafana.example.com, without ? and #")
    return url


def parse_role(text: str) -> str:
    role = text.strip().capitalize()
    if role not in {"Head", "Worker"}:
        raise ValueError("use Head or Worker")
    return role


def parse_store(text: str) -> str:
    """Parse the URL of a store. A plain directory becomes a file:// URL."""
    url = text.strip() if "://" in text else Path(text.strip()).expanduser().absolute().as_uri()
    scheme, _, rest = url.partition("://")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError("use file:///directory, with three slashes")
    if not rest.strip("/"):
        raise ValueError(f"the bucket is missing: use {scheme}://bucket/prefix")
    if "?" in rest or "@" in rest.partition("/")[0]:
        raise ValueError("set credentials and endpoints in the cloud's own variables, not in the URL")
    return url


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts these lower-case words, in any case."""
    hint = f"use {', '.join(choices[:-1])} or {choices[-1]}"

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(hint)
        return word

    return parse


def parse_prices(text: str) -> tuple[str, ...]:
    """Parse the prices of resources, each a name and a number."""
    parts = parse_list(text)
    for part in parts:
        name, _, amount = part.partition("=")
        if name not in PRICED_RESOURCES or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", amount):
            raise ValueError(f"use prices per hour such as cpu=0.04,gpu=2.5,memory=0.005, not {part!r}")
    if len({part.partition("=")[0] for part in parts}) < len(parts):
        raise ValueError(f"give one price for each resource, not {text!r}")
    return parts


def parse_run_key(text: str) -> str:
    """Parse the rule that finds runs of the same job."""
    key = text.strip()
    if key not in RUN_KEYS and not re.fullmatch(r"metadata\.[^\s]{1,64}", key):
        raise ValueError(f"use one of {', '.join(RUN_KEYS)}, or metadata.FIELD")
    return key
