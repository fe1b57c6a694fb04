"""Command lines of early KubeRay manifests."""

from pathlib import Path

import pytest

from rayhistory.settings import COLLECTOR, SERVER, parse_command_line


def test_early_spellings_of_collector_flags_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--ray-head has no value, and the configuration is read from where early manifests mounted it."""
    flags = "--ray-head --runtime-class-name=local --ray-root=log --ray-cluster-name=a"
    mounted = tmp_path / "data"
    monkeypatch.setattr("rayhistory.settings.command_line.MOUNTED_CONFIG", mounted)
    settings, warnings = parse_command_line(COLLECTOR, flags.split(), "")
    assert (settings.role, settings.storage_root_dir, settings.storage_backend_config_path) == ("Head", "log", "")
    assert warnings == []
    mounted.write_text("{}")
    assert parse_command_line(COLLECTOR, [], "")[0].storage_backend_config_path == str(mounted)
    chosen = parse_command_line(COLLECTOR, ["--storage-backend-config-path=/other"], "")[0]
    assert chosen.storage_backend_config_path == "/other"


@pytest.mark.parametrize("flag", ["--enable-live-clusters", "--enable-live-clusters=true", "-enable-live-clusters"])
def test_flag_for_live_clusters_of_kuberay_1_7_1_is_accepted(flag: str) -> None:
    settings, warnings = parse_command_line(SERVER, [flag], "")
    assert settings.live
    assert warnings == []
