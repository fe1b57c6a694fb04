"""Recorded sessions as an older version of Ray would have exported them."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from recorded.recorder import CLUSTER, Recording

LineEdit = Callable[[dict[str, Any]], None]


def export_no_log_info(event: dict[str, Any]) -> None:
    """Export what Ray before 2.54 did: nothing about the output of tasks."""
    event.get("taskLifecycleEvent", {}).pop("taskLogInfo", None)


def export_ends_only(event: dict[str, Any]) -> None:
    """Export what Ray 2.55 to 2.57 did if it sent start and end together: all fields, but only the ends are set."""
    info = event.get("taskLifecycleEvent", {}).get("taskLogInfo")
    if info and "stdoutEnd" in info:
        info |= {"stdoutFile": "", "stderrFile": "", "stdoutStart": "0", "stderrStart": "0"}


def copy_as_exported_by(version: str, edit: LineEdit, recorded: Recording, store: Path) -> None:
    """Copy the recorded session to another store, with events as `edit` changes them, and another version of Ray."""

    def edit_version(line: dict[str, Any]) -> None:
        response = line.get("dashboardSnapshot", {})
        if response.get("uri") == "/api/version":
            response["body"]["ray_version"] = version
        elif response.get("uri") == "/nodes?view=summary":
            for node in response["body"]["data"]["summary"]:
                node["raylet"].pop("sessionDir", None)

    for path in recorded.store.rglob("*"):
        relative = path.relative_to(recorded.store)
        if path.is_file() and {CLUSTER, f"default_{CLUSTER}"} & set(relative.parts) and "index" not in relative.parts:
            copy = store / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.name.endswith(".jsonl.gz"):
                _copy_lines(path, copy, edit_version if "snapshots" in relative.parts else edit)
            elif path.name == "start.json":
                copy.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"ray_version": version}))
            else:
                shutil.copy2(path, copy)


def _copy_lines(source: Path, target: Path, edit: LineEdit) -> None:
    with gzip.open(source) as lines, gzip.open(target, "wb") as edited:
        for line in lines:
            event = msgspec.json.decode(line)
            edit(event)
            edited.write(msgspec.json.encode(event) + b"\n")
