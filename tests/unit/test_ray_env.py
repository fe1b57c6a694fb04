"""Export settings for each version of Ray."""

import pytest

from rayhistory.errors import UsageError
from rayhistory.ray_env import export_environment, is_before, parse_version, system_config

URL = "http://127.0.0.1:8084/v1/events"
TYPES = "RAY_DASHBOARD_AGGREGATOR_AGENT_EXPOSABLE_EVENT_TYPES"
OLDER_TYPES = "RAY_DASHBOARD_AGGREGATOR_AGENT_PUBLISHER_HTTP_ENDPOINT_EXPOSABLE_EVENT_TYPES"
FILES = "RAY_enable_export_api_write_config"


def types_of(version: str) -> set[str]:
    return set(export_environment(URL, version)[TYPES].split(","))


def test_current_release_exports_all_types() -> None:
    assert export_environment(URL) == {
        "RAY_enable_ray_event": "1",
        "RAY_enable_core_worker_ray_event_to_aggregator": "1",
        "RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR": URL,
        TYPES: "ALL",
        OLDER_TYPES: "ALL",
        FILES: "EXPORT_SUBMISSION_JOB,EXPORT_TRAIN_RUN,EXPORT_TRAIN_RUN_ATTEMPT,EXPORT_DATASET_METADATA,"
        "EXPORT_DATASET_OPERATOR_EVENT,EXPORT_DATASET_OPERATOR_SCHEMA",
    }


def test_types_are_listed_before_2_54() -> None:
    """Before 2.54 `ALL` matches no type."""
    assert "ALL" not in types_of("2.53.0")
    assert types_of("2.54.0") == {"ALL"}


@pytest.mark.parametrize("version", ["2.49.0", "2.50.1", "2.51.0", "2.52.1", "2.53.0"])
def test_profile_events_are_requested_in_every_version(version: str) -> None:
    """Ray does not export them by default, and the timeline needs them."""
    assert "TASK_PROFILE_EVENT" in types_of(version)


@pytest.mark.parametrize(
    ("version", "known", "unknown"),
    [
        ("2.49.2", "TASK_EXECUTION_EVENT", "TASK_LIFECYCLE_EVENT"),
        ("2.50.0", "TASK_EXECUTION_EVENT", "TASK_LIFECYCLE_EVENT"),
        ("2.51.0", "TASK_LIFECYCLE_EVENT", "TASK_EXECUTION_EVENT"),
    ],
)
def test_task_state_event_has_the_name_of_the_version(version: str, known: str, unknown: str) -> None:
    """2.51 renamed the event of a task's states."""
    assert known in types_of(version)
    assert unknown not in types_of(version)


def test_node_actor_and_job_events_are_requested_from_2_50() -> None:
    """Ray 2.49 has only task events."""
    since_2_50 = {"NODE_LIFECYCLE_EVENT", "ACTOR_LIFECYCLE_EVENT", "DRIVER_JOB_LIFECYCLE_EVENT"}
    assert not since_2_50 & types_of("2.49.0")
    assert since_2_50 <= types_of("2.50.0")
    assert "RAY_enable_ray_event" not in export_environment(URL, "2.49.0")


def test_file_exports_depend_on_the_version() -> None:
    assert "EXPORT_DATASET_OPERATOR_EVENT" not in export_environment(URL, "2.51.0")[FILES]
    assert "EXPORT_DATASET_OPERATOR_EVENT" in export_environment(URL, "2.52.0")[FILES]
    assert "EXPORT_DATASET_OPERATOR_SCHEMA" not in export_environment(URL, "2.54.0")[FILES]


def test_both_variables_of_the_type_list_are_set() -> None:
    """Ray renamed the variable back and forth, and ignores the other name."""
    for version in ("2.49.0", "2.53.0", "2.60.0"):
        environment = export_environment(URL, version)
        assert environment[TYPES] == environment[OLDER_TYPES]


def test_system_config_has_only_keys_of_the_version() -> None:
    """Ray does not start with an unknown key."""
    assert system_config("2.49.0") == {"enable_core_worker_ray_event_to_aggregator": True}
    assert system_config("2.60.0") == {
        "enable_core_worker_ray_event_to_aggregator": True,
        "enable_ray_event": True,
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.60", (2, 60)),
        ("2.60.0", (2, 60)),
        ("2.60.0rc1", (2, 60)),
        ("v2.54.1", (2, 54)),
        (" 2.49.0\n", (2, 49)),
        ("2.60.0+cu128", (2, 60)),
        ("2.60.0-py311", (2, 60)),
        ("2.60.0.post1", (2, 60)),
        ("3.0.0.dev0", (3, 0)),
    ],
)
def test_versions_with_prefixes_and_suffixes_are_parsed(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_nightly_build_counts_as_current() -> None:
    """Ray's main branch has the version 3.0.0.dev0."""
    assert export_environment(URL, "3.0.0.dev0") == export_environment(URL, "2.60.0")


@pytest.mark.parametrize("text", ["", "latest", "2", "2.x", "two.sixty", "2.60 or so"])
def test_invalid_version_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a Ray version") as caught:
        export_environment(URL, text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["2.48.0", "1.13.0"])
def test_version_without_event_export_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=r"use Ray 2\.49 or newer"):
        system_config(text)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.9.3", True), ("2.56.1", True), ("2.57.0", False), ("9" * 5000 + ".1", False), ("٢.1", False), (None, False)],
)
def test_only_known_versions_are_before_another(version: str | None, expected: bool) -> None:
    assert is_before(version, (2, 57)) is expected


def test_variables_occur_in_the_source_of_the_installed_ray() -> None:
    configs = pytest.importorskip("ray.dashboard.modules.aggregator.publisher.configs")
    aggregator = pytest.importorskip("ray.dashboard.modules.aggregator.aggregator_agent")
    from pathlib import Path

    source = Path(configs.__file__).read_text() + Path(aggregator.__file__).read_text()
    assert TYPES in source or OLDER_TYPES in source
    assert "RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR" in source
