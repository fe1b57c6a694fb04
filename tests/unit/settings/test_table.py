"""Settings from flags and the environment, and their documentation."""

import pytest

from rayhistory.errors import InvalidSetting
from rayhistory.settings import (
    CLI,
    COLLECTOR,
    SERVER,
    parse_command_line,
    parse_duration,
    parse_size,
    resolve,
    setting_specs,
)
from rayhistory.settings.reference import document
from support.paths import ROOT


def test_environment_overrides_flags_except_in_rayhistory() -> None:
    """`collector` and `historyserver` behave as KubeRay's."""
    flags, environment = {"setting_local_storage_dir": "/flag"}, {"LOCAL_STORAGE_DIR": "/environment"}
    assert resolve(SERVER, flags, environment)[0].local_storage_dir == "/environment"
    assert resolve(COLLECTOR, flags, environment)[0].local_storage_dir == "/environment"
    assert resolve(CLI, flags, environment)[0].local_storage_dir == "/flag"


def test_both_generations_of_kuberay_flags_are_accepted() -> None:
    """Go's spelling too: one dash, a value after a space or an equals sign."""
    argv = (
        "-role=head --runtime-class-name local --ray-cluster-id team-a -ray-root-dir log --events-port=9000 "
        "--push-interval=1m"
    )
    settings, warnings = parse_command_line(COLLECTOR, argv.split(), "")
    assert settings.role == "Head"
    assert settings.storage_backend == "local"
    assert settings.ray_cluster_namespace == "team-a"
    assert settings.storage_root_dir == "log"
    assert settings.events_port == 9000
    assert warnings == ["--push-interval is accepted for compatibility and has no effect"]
    assert not parse_command_line(COLLECTOR, ["--enable-log-collector=false"], "")[0].enable_log_collector


def test_kubernetes_service_variable_is_not_a_port() -> None:
    """A Service named rayhistory sets RAYHISTORY_PORT=tcp://…"""
    assert resolve(SERVER, {}, {"RAYHISTORY_PORT": "tcp://10.0.0.1:80"})[0].port == 8080


def test_assumed_role_of_a_collector_is_reported() -> None:
    """KubeRay's default is Worker, whose collector stores no session records."""
    settings, warnings = resolve(COLLECTOR, {}, {})
    assert (settings.role, warnings) == ("Worker", ["role not set, assuming Worker: on the head node, set --role=Head"])
    for arguments, environ in (
        ({"setting_role": "Worker"}, {}),
        ({"setting_ray_head": "true"}, {}),
        ({}, {"RAY_ROLE": "Head"}),
    ):
        assert resolve(COLLECTOR, arguments, environ)[1] == []
    assert resolve(SERVER, {}, {})[1] == []


def test_invalid_variable_is_named() -> None:
    """An invalid value in our variable is an error; in KubeRay's, it is ignored with a warning, as in KubeRay."""
    with pytest.raises(InvalidSetting, match="RAYHISTORY_PORT=x: use a port number"):
        resolve(SERVER, {}, {"RAYHISTORY_PORT": "x"})
    settings, warnings = resolve(COLLECTOR, {}, {"EVENTS_PORT": "x", "RAY_ROLE": "Head"})
    assert settings.events_port == 8084
    assert warnings == ["EVENTS_PORT=x is ignored: use a port number from 0 to 65535"]
    with pytest.raises(InvalidSetting, match="OWNER_KIND and OWNER_NAME"):
        resolve(COLLECTOR, {}, {"OWNER_KIND": "rayjob"})


@pytest.mark.parametrize(("flag", "hint"), [("--nope", ""), ("--por=1", ": did you mean --port?")])
def test_unknown_or_abbreviated_flag_exits_with_2_and_one_line(
    flag: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command_line(SERVER, [flag], "")
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == f"historyserver: unknown flag or argument: {flag}{hint} (see historyserver --help)\n"
    )


def test_go_durations_and_kubernetes_sizes_are_parsed() -> None:
    assert parse_duration("1h30m") == 5400
    assert parse_duration("250ms") == 0.25
    assert parse_size("2Gi") == 2**31
    assert parse_size("2e9") == 2 * 10**9
    for wrong in ("8GiB", "-1", ""):
        with pytest.raises(ValueError, match="use a size"):
            parse_size(wrong)
    for wrong in ("5", "5 m", "m"):
        with pytest.raises(ValueError, match="use a duration"):
            parse_duration(wrong)


def test_configuration_reference_is_up_to_date() -> None:
    """`make docs` generates docs/reference/configuration.md."""
    text = (ROOT / "docs/reference/configuration.md").read_text()
    assert text == document()
    assert all(spec.own_variable in text for spec in setting_specs())


@pytest.mark.parametrize(
    "prices",
    ["cpu=abc", "cpu=nan", "cpu=inf", "cpu=-1", "cpu=1e9", "cpu=", "cpu", "disk=3", "cpu=1,gpu=<b>", "cpu=1,cpu=2"],
)
def test_prices_that_are_not_numbers_are_a_wrong_setting(prices: str) -> None:
    with pytest.raises(InvalidSetting, match="price"):
        resolve("historyserver", {"setting_price": prices}, {})


def test_prices_are_numbers_per_resource() -> None:
    settings, _ = resolve("historyserver", {"setting_price": "cpu=0.04,gpu=2.5"}, {})
    assert settings.price == ("cpu=0.04", "gpu=2.5")
