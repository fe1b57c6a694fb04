"""Decide which runs are runs of the same job: by owner, name in the metadata, or normalized entrypoint."""

import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

from rayhistory.runs.session_summary import RunJob, SessionSummary

METADATA_PREFIX = "metadata."
_GENERATED_SUFFIX = re.compile(r"-(?:[0-9]{8,}|[bcdfghjklmnpqrstvwxz2456789]{5}|[0-9]{4}-?[0-9]{2}-?[0-9]{2}.*)$")
"""Suffixes that Kubernetes and schedulers append to names: a time, or five letters without vowels."""
_VARYING = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{22}|0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+(?:[-.:T_]\d+)*Z?"
)
_DIRECTORY = re.compile(r"(?<![\w.-])/(?:[^\s/'\"]+/)+(?=[^\s/'\"]+)")
_MAX_NAME = 200


class RunIdentity(NamedTuple):
    """The identity of a group of runs of the same job."""

    namespace: str
    kind: str
    """Kind of the group: `rayjob`, `rayservice`, `job` (by name), `metadata`, `entrypoint` or `cluster`."""
    name: str

    @property
    def key(self) -> str:
        """Return the key of the group for URLs. It reveals nothing to visitors who may not see the namespace."""
        return hashlib.sha256("\0".join(self).encode(errors="replace")).hexdigest()[:16]


def normalized_entrypoint(text: str) -> str:
    """Return an entrypoint without directories, numbers, dates and ids, so that it is equal for repeated runs."""
    return " ".join(_VARYING.sub("#", _DIRECTORY.sub("", text)).split())[:_MAX_NAME]


def short_entrypoint(text: str) -> str:
    """Return an entrypoint without directories, for people."""
    return " ".join(_DIRECTORY.sub("", text).split())[:_MAX_NAME]


def normalized_name(name: str) -> str:
    """Return a name without its generated suffix. A name that is only a suffix stays."""
    return _GENERATED_SUFFIX.sub("", name) or name


def identify(summary: SessionSummary, job: RunJob, run_key: str = "auto") -> RunIdentity:
    """Return the group of a run.

    `run_key` is the rule by which runs are grouped. If it does not apply to this run, the rules of `auto` are tried.
    """
    rules = [_by_metadata(run_key.removeprefix(METADATA_PREFIX))] if run_key.startswith(METADATA_PREFIX) else []
    rules += [_RULES[run_key]] if run_key in _RULES else []
    for rule in (*rules, _by_owner, _by_name, _by_entrypoint, _by_cluster):
        if found := rule(summary, job):
            return RunIdentity(summary.namespace, *found)
    raise AssertionError("every session has a cluster")


_Rule = Callable[[SessionSummary, RunJob], tuple[str, str] | None]


def _by_metadata(field: str) -> _Rule:
    def rule(summary: SessionSummary, job: RunJob) -> tuple[str, str] | None:
        value = job.metadata.get(field)
        return ("metadata", f"{field}={value}"[:_MAX_NAME]) if value else None

    return rule


def _by_owner(summary: SessionSummary, job: RunJob) -> tuple[str, str] | None:
    if not summary.owner_kind or not summary.owner_name:
        return None
    return summary.owner_kind, normalized_name(summary.owner_name)


def _by_name(summary: SessionSummary, job: RunJob) -> tuple[str, str] | None:
    return ("job", normalized_name(job.name)[:_MAX_NAME]) if job.name else None


def _by_entrypoint(summary: SessionSummary, job: RunJob) -> tuple[str, str] | None:
    name = normalized_entrypoint(job.entrypoint)
    return ("entrypoint", name) if name else None


def _by_cluster(summary: SessionSummary, job: RunJob) -> tuple[str, str]:
    return "cluster", normalized_name(summary.cluster)


_RULES: dict[str, _Rule] = {"owner": _by_owner, "name": _by_name, "entrypoint": _by_entrypoint, "cluster": _by_cluster}
