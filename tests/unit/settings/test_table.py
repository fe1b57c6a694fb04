"""One table: flags, environment and documentation."""

from pathlib import Path

import pytest

from rayhistory.errors import Misconfigured
from rayhistory.settings import (
    COLLECTOR,
    SERVER,
    STORE_COMMANDS,
    declared,
    own_variable,
    parse_command_line,
    parse_duration,
    parse_size,
    resolve,
)
from rayhistory.settings_doc import document

ROOT = Path(__file__).parents[2]


def test_the_environment_wins_over_flags_in_the_programs_and_loses_in_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in KubeRay for collector and historyserver; as people expect for rayhistory."""
    flags, environment = {"setting_local_storage_dir": "/flag"}, {"LOCAL_STORAGE_DIR": "/environment"}
    assert resolve(SERVER, flags, environment)[0].local_storage_dir == "/environment"
    assert resolve(COLLECTOR, flags, environment)[0].local_storage_dir == "/environment"
    assert resolve(STORE_COMMANDS, flags, environment)[0].local_storage_dir == "/flag"


def test_both_generations_of_kuberays_flags_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go's spelling too: one dash, a value behind a space or an equals sign."""
    old = (
        "-role=head --runtime-class-name local --ray-cluster-id team-a -ray-root-dir log --events-port=9000 "
        "--push-interval=1m"
    )
    settings, warnings = parse_command_line(COLLECTOR, old.split(), "")
    assert settings.role == "Head"
    assert settings.storage_backend == "local"
    assert settings.ray_cluster_namespace == "team-a"
    assert settings.storage_root_dir == "log"
    assert settings.events_port == 9000
    assert warnings == ["--push-interval is accepted for compatibility and has no effect"]
    assert not parse_command_line(COLLECTOR, ["--enable-log-collector=false"], "")[0].enable_log_collector


def test_a_kubernetes_service_variable_is_not_a_port() -> None:
    """A Service named rayhistory sets RAYHISTORY_PORT=tcp://…"""
    assert resolve(SERVER, {}, {"RAYHISTORY_PORT": "tcp://10.0.0.1:80"})[0].port == 8080


def test_a_value_that_cannot_be_read_is_named() -> None:
    """Ours stops the program; KubeRay's is ignored with a warning, as there."""
    with pytest.raises(Misconfigured, match="RAYHISTORY_PORT=x: use a port number"):
        resolve(SERVER, {}, {"RAYHISTORY_PORT": "x"})
    settings, warnings = resolve(COLLECTOR, {}, {"EVENTS_PORT": "x"})
    assert settings.events_port == 8084
    assert warnings == ["EVENTS_PORT=x is ignored: use a port number from 0 to 65535"]
    with pytest.raises(Misconfigured, match="OWNER_KIND and OWNER_NAME"):
        resolve(COLLECTOR, {}, {"OWNER_KIND": "rayjob"})


@pytest.mark.parametrize("flag", ["--nope", "--por=1"])
def test_an_unknown_or_abbreviated_flag_is_one_line_and_exit_code_2(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command_line(SERVER, [flag], "")
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"historyserver: unknown flag or argument: {flag} (see historyserver --help)\n"


def test_durations_and_sizes_are_gos_and_kubernetes() -> None:
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


def test_the_documentation_is_the_table() -> None:
    """docs/configuration.md is made by `make docs`, and names every setting."""
    text = (ROOT / "docs/configuration.md").read_text()
    assert text == document()
    assert all(own_variable(name) in text for name, _, _ in declared())
