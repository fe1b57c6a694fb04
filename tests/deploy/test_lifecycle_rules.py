"""The lifecycle rules of deploy/lifecycle: old versions go, and a removed session can be restored for a month."""

import json
import string
from typing import Any, NamedTuple

import pytest

from deploy.files import DEPLOY

REWRITTEN = ("index", "runs", "notifications", "metrics", "sessions")
"""Objects below ray-history/ that are rewritten all the time: each rewrite leaves a version."""


class Expiry(NamedTuple):
    days: int
    keeps_last: bool
    """Whether the last version of a deleted object stays."""


def rules(cloud: str) -> Any:
    variables = {"PREFIX": "ray/", "AZURE_STORAGE_CONTAINER": "a-container"}
    return json.loads(string.Template((DEPLOY / f"lifecycle/{cloud}.json").read_text()).substitute(variables))


def s3() -> dict[str, Expiry]:
    found = [(rule["Filter"]["Prefix"], rule.get("NoncurrentVersionExpiration")) for rule in rules("s3")["Rules"]]
    return {
        prefix: Expiry(expiry["NoncurrentDays"], "NewerNoncurrentVersions" in expiry)
        for prefix, expiry in found
        if expiry
    }


def gcs() -> dict[str, Expiry]:
    """A rule without prefixes is one for the whole bucket."""
    conditions = [rule["condition"] for rule in rules("gcs")["rule"] if rule["action"]["type"] == "Delete"]
    return {
        prefix: Expiry(condition["daysSinceNoncurrentTime"], condition.get("numNewerVersions", 0) > 0)
        for condition in conditions
        for prefix in condition.get("matchesPrefix", ["ray/"])
    }


def azure() -> dict[str, Expiry]:
    definitions = [rule["definition"] for rule in rules("azure")["rules"]]
    return {
        prefix.removeprefix("a-container/"): Expiry(
            definition["actions"]["version"]["delete"]["daysAfterCreationGreaterThan"], keeps_last=False
        )
        for definition in definitions
        for prefix in definition["filters"]["prefixMatch"]
    }


@pytest.mark.parametrize("expiries", [s3(), gcs(), azure()], ids=["s3", "gcs", "azure"])
def test_versions_of_rewritten_objects_are_deleted_within_days(expiries: dict[str, Expiry]) -> None:
    """The metrics of one node would otherwise leave 43,000 versions in 30 days."""
    assert expiries.pop("ray/") == Expiry(30, keeps_last=False)
    assert expiries.keys() == {f"ray/ray-history/{tree}/" for tree in REWRITTEN}
    assert max(expiry.days for expiry in expiries.values()) <= 3


@pytest.mark.parametrize("expiries", [s3(), gcs()], ids=["s3", "gcs"])
def test_records_and_metrics_of_a_removed_session_can_be_restored(expiries: dict[str, Expiry]) -> None:
    kept = {prefix for prefix, expiry in expiries.items() if expiry.keeps_last}
    assert kept == {"ray/ray-history/metrics/", "ray/ray-history/sessions/"}
