"""Settings that make a Ray cluster of a given version export its events to a collector.

Ray has these settings since 2.49, and nearly every release renamed, added or changed one. Ray ignores a wrong name
without an error. So all code and documentation takes the settings from here.
"""

import re

from rayhistory.errors import UsageError

Version = tuple[int, int]

MIN_RAY_VERSION: Version = (2, 49)
ALL_SPANS_SINCE: Version = (2, 55)
"""The first version of Ray that exports all profile spans.

Earlier ones export only the last span of a task in each second.
"""
_CURRENT: Version = (9999, 0)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*(?:[.+-]?[a-z].*)?", re.IGNORECASE)

_AGGREGATOR = "RAY_DASHBOARD_AGGREGATOR_AGENT"

# Event type: the first version that has it, and the first that no longer has it. Ray ignores unknown types, but a
# missing type loses its events.
_EVENT_TYPES: dict[str, tuple[Version, Version]] = {
    "TASK_DEFINITION_EVENT": (MIN_RAY_VERSION, _CURRENT),
    "TASK_EXECUTION_EVENT": (MIN_RAY_VERSION, (2, 51)),
    "TASK_LIFECYCLE_EVENT": ((2, 51), _CURRENT),
    "ACTOR_TASK_DEFINITION_EVENT": (MIN_RAY_VERSION, _CURRENT),
    "TASK_PROFILE_EVENT": (MIN_RAY_VERSION, _CURRENT),
    "DRIVER_JOB_DEFINITION_EVENT": ((2, 50), _CURRENT),
    # Ray renamed this type during the development of 2.50, so both names are set.
    "DRIVER_JOB_EXECUTION_EVENT": ((2, 50), (2, 51)),
    "DRIVER_JOB_LIFECYCLE_EVENT": ((2, 50), _CURRENT),
    "NODE_DEFINITION_EVENT": ((2, 50), _CURRENT),
    "NODE_LIFECYCLE_EVENT": ((2, 50), _CURRENT),
    "ACTOR_DEFINITION_EVENT": ((2, 50), _CURRENT),
    "ACTOR_LIFECYCLE_EVENT": ((2, 50), _CURRENT),
}

# Data that no event carries, which Ray writes to export files instead; with the first version that does.
_FILE_EXPORTS: dict[str, Version] = {
    "EXPORT_SUBMISSION_JOB": MIN_RAY_VERSION,
    "EXPORT_TRAIN_RUN": MIN_RAY_VERSION,
    "EXPORT_TRAIN_RUN_ATTEMPT": MIN_RAY_VERSION,
    "EXPORT_DATASET_METADATA": MIN_RAY_VERSION,
    "EXPORT_DATASET_OPERATOR_EVENT": (2, 52),
    "EXPORT_DATASET_OPERATOR_SCHEMA": (2, 55),
}


def export_environment(events_url: str, ray_version: str = "2.60.0") -> dict[str, str]:
    """Return the environment for all Ray processes of a node that sends its events to `events_url`."""
    version = parse_version(ray_version)
    types = exposable_event_types(version)
    return {
        **{f"RAY_{name}": "1" for name in system_config(ray_version)},
        f"{_AGGREGATOR}_EVENTS_EXPORT_ADDR": events_url,
        f"{_AGGREGATOR}_EXPOSABLE_EVENT_TYPES": types,
        f"{_AGGREGATOR}_PUBLISHER_HTTP_ENDPOINT_EXPOSABLE_EVENT_TYPES": types,
        "RAY_enable_export_api_write_config": ",".join(
            name for name, since in _FILE_EXPORTS.items() if version >= since
        ),
    }


def system_config(ray_version: str = "2.60.0") -> dict[str, bool]:
    """Return the value for `ray start --head --system-config=`. Unlike the environment, it reaches every driver.

    A driver without these settings exports no events, and its tasks have no name. Ray does not start if its version
    does not know a key.
    """
    config = {"enable_core_worker_ray_event_to_aggregator": True}
    if parse_version(ray_version) >= (2, 50):
        config["enable_ray_event"] = True
    return config


def exposable_event_types(version: Version) -> str:
    """Return Ray's setting for the types of exported events: `ALL`, or before Ray 2.54, a list of all types."""
    if version >= (2, 54):
        return "ALL"
    return ",".join(name for name, (since, until) in _EVENT_TYPES.items() if since <= version < until)


def known_version(text: str | None) -> Version | None:
    """Return major and minor of the version that a cluster reported; None if it reported none."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", text or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def is_before(text: str | None, version: Version) -> bool:
    """Return whether a cluster reported a version older than `version`. An unknown version counts as the newest."""
    known = known_version(text)
    return known is not None and known < version


def parse_version(text: str) -> Version:
    """Return major and minor of a Ray version, such as `2.60`, `2.60.0rc1`, `v2.54.1` or `3.0.0.dev0`."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a Ray version: use one such as 2.60.0")
    version = (int(match[1]), int(match[2]))
    if version < MIN_RAY_VERSION:
        raise UsageError(
            f"Ray {text.strip()} cannot export events: use Ray {MIN_RAY_VERSION[0]}.{MIN_RAY_VERSION[1]} or newer"
        )
    return version
