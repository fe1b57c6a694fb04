"""Which settings make a Ray cluster of a given version export its events to a collector.

Ray has had these settings since 2.49, and nearly every release since then renamed, added or reinterpreted
one of them; a wrong name is not an error in Ray but silence. Everything that starts a recorded cluster, and
every text that tells a user how to, takes the settings from here.
"""

import re

from rayhistory.errors import UsageError

Version = tuple[int, int]

OLDEST: Version = (2, 49)
_NEWEST: Version = (9999, 0)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*(?:[.+-]?[a-z].*)?", re.IGNORECASE)

_AGGREGATOR = "RAY_DASHBOARD_AGGREGATOR_AGENT"

# Name: the first version that has it, and the first that no longer does. A name that a version does not know
# is never matched and does no harm there, but a missing one loses its events.
_EVENT_TYPES: dict[str, tuple[Version, Version]] = {
    "TASK_DEFINITION_EVENT": (OLDEST, _NEWEST),
    "TASK_EXECUTION_EVENT": (OLDEST, (2, 51)),
    "TASK_LIFECYCLE_EVENT": ((2, 51), _NEWEST),
    "ACTOR_TASK_DEFINITION_EVENT": (OLDEST, _NEWEST),
    "TASK_PROFILE_EVENT": (OLDEST, _NEWEST),
    "DRIVER_JOB_DEFINITION_EVENT": ((2, 50), _NEWEST),
    # Ray renamed this one while 2.50 was being made: both names, whichever the release has.
    "DRIVER_JOB_EXECUTION_EVENT": ((2, 50), (2, 51)),
    "DRIVER_JOB_LIFECYCLE_EVENT": ((2, 50), _NEWEST),
    "NODE_DEFINITION_EVENT": ((2, 50), _NEWEST),
    "NODE_LIFECYCLE_EVENT": ((2, 50), _NEWEST),
    "ACTOR_DEFINITION_EVENT": ((2, 50), _NEWEST),
    "ACTOR_LIFECYCLE_EVENT": ((2, 50), _NEWEST),
}

# What no event carries in any release so far, and Ray can write to files instead.
_FILE_EXPORTS: dict[str, Version] = {
    "EXPORT_SUBMISSION_JOB": OLDEST,
    "EXPORT_TRAIN_RUN": OLDEST,
    "EXPORT_TRAIN_RUN_ATTEMPT": OLDEST,
    "EXPORT_DATASET_METADATA": OLDEST,
    "EXPORT_DATASET_OPERATOR_EVENT": (2, 52),
    "EXPORT_DATASET_OPERATOR_SCHEMA": (2, 55),
}


def export_environment(events_url: str, ray_version: str = "2.60.0") -> dict[str, str]:
    """The environment of all Ray processes of a node whose events are POSTed to `events_url`."""
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
    """For `ray start --head --system-config=`, which unlike the environment also reaches every driver.

    A driver that lacks these settings exports nothing, and the tasks that it owns have no name.
    Ray refuses to start on a key that its version does not know.
    """
    config = {"enable_core_worker_ray_event_to_aggregator": True}
    if parse_version(ray_version) >= (2, 50):
        config["enable_ray_event"] = True
    return config


def exposable_event_types(version: Version) -> str:
    """`ALL` where Ray understands it; before 2.54 it matches no type, and nothing is exported."""
    if version >= (2, 54):
        return "ALL"
    return ",".join(name for name, (since, until) in _EVENT_TYPES.items() if since <= version < until)


def parse_version(text: str) -> Version:
    """Major and minor of a Ray version as people write it: `2.60`, `2.60.0rc1`, `v2.54.1`, `3.0.0.dev0`."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a Ray version; give one like 2.60.0")
    version = (int(match[1]), int(match[2]))
    if version < OLDEST:
        raise UsageError(f"Ray {text.strip()} cannot export events; use Ray {OLDEST[0]}.{OLDEST[1]} or newer")
    return version
