"""Frozen names (tests/data/contracts.toml): scripts, settings, keys, fields, columns and URLs do not disappear."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import rayhistory
from rayhistory.cli.inspect import tables_reference
from rayhistory.collector.spool import ledger
from rayhistory.server.app import create_app
from rayhistory.sessions import layout_reference, records
from rayhistory.settings import CLI, COLLECTOR, SERVER, setting_specs
from rayhistory.settings.command_line import resolve
from support.paths import DATA
from support.store_0_1_0 import OWNED, extract

CONTRACTS = tomllib.loads((DATA / "contracts.toml").read_text())
LEDGER_FIELDS = {"received", "stored", "bad_before", "lost_before", "sealed", "late", "confirmed"}
LEDGER_FILE_FIELDS = {"last_created", "bad", "lost", "sessions"}
NAMES = {"namespace": "default", "cluster": "test", "session": OWNED, "owner": "nightly", "ms": "1794945000000"}


def serialized_names(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


@pytest.mark.parametrize("name", CONTRACTS["console_scripts"])
def test_console_script_is_installed(name: str) -> None:
    (script,) = entry_points(group="console_scripts", name=name)
    assert callable(script.load())


@pytest.mark.parametrize("name", CONTRACTS["storage_backends"])
def test_storage_backend_is_registered(name: str) -> None:
    assert [entry.name for entry in entry_points(group="rayhistory.storage", name=name)] == [name]


@pytest.mark.parametrize("program", [COLLECTOR, SERVER])
def test_flags_are_accepted(program: str) -> None:
    accepted = {flag for spec in setting_specs() if program in spec.programs for flag in spec.flags}
    frozen = {dashes + flag for flag in CONTRACTS[program]["flags"] for dashes in ("--", "-")}
    assert frozen <= accepted, frozen - accepted


@pytest.mark.parametrize("program", [COLLECTOR, SERVER, CLI])
def test_environment_variables_are_read(program: str) -> None:
    variables = {name for spec in setting_specs() if program in spec.programs for name in spec.all_variables}
    frozen = set(CONTRACTS[program]["environment"])
    assert frozen <= variables, frozen - variables


@pytest.mark.parametrize("key", CONTRACTS["store"]["keys"])
def test_keys_of_the_store_are_unchanged(key: str) -> None:
    keys = re.findall(r"^\| `([^`]+)` \|", layout_reference.document(), re.MULTILINE)
    assert key in keys


@pytest.mark.parametrize("name", CONTRACTS["records"])
def test_records_have_their_fields(name: str) -> None:
    assert set(CONTRACTS["records"][name]) <= serialized_names(getattr(records, name))


def test_ledger_has_its_fields() -> None:
    assert serialized_names(ledger.LedgerEntry) >= LEDGER_FIELDS
    assert serialized_names(ledger._LedgerFile) >= LEDGER_FILE_FIELDS


@pytest.mark.parametrize("table", CONTRACTS["tables"])
def test_tables_have_their_columns(table: str) -> None:
    sections = re.split(r"^## ", tables_reference.document(), flags=re.MULTILINE)[1:]
    columns = {section.split("`")[1]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in sections}
    assert set(CONTRACTS["tables"][table]) <= set(columns[table])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("contracts")
    settings, _ = resolve(
        SERVER,
        {
            "setting_local_storage_dir": str(extract("store", directory)),
            "setting_cache_dir": str(directory / "cache"),
        },
        {"RAYHISTORY_INDEX_AHEAD": "false"},
    )
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.mark.parametrize("path", CONTRACTS["urls"]["plain"] + CONTRACTS["urls"]["session"])
def test_urls_are_served(server: TestClient, path: str) -> None:
    response = server.get(path.format(**NAMES), headers={"Accept": "*/*"})
    assert response.status_code == 200, response.text


def test_importing_the_package_is_light() -> None:
    code = "import sys, rayhistory; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"duckdb", "starlette", "ray"} & set(loaded)


def test_ray_job_client_finds_the_address_function() -> None:
    function: Any = rayhistory.get_job_submission_client_cluster_info
    assert callable(function)
