"""Actors in the shape that the dashboard's pages read."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request

from rayhistory import ids
from rayhistory.index.query.query import Filter, Row
from rayhistory.server.http.json_lists import encoded_items, json_members
from rayhistory.server.http.responses import google_style
from rayhistory.server.http.view_routes import end_open_rows_for_browsers
from rayhistory.server.untrusted_json import decode_json, decode_raw, nested_dict
from rayhistory.server.view import SessionView

TPUS_SINCE = (2, 56)
_NIL_ID = "f" * (2 * ids.NODE)
_DEATH_MESSAGE_FIELDS = {
    "actor_died_error_context": "error_message",
    "runtime_env_failed_context": "error_message",
    "actor_unschedulable_context": "error_message",
    "creation_task_failure_context": "formatted_exception_string",
}


async def dashboard_actors(
    request: Request, view: SessionView, *filters: Filter, camel_case: bool = False
) -> AsyncIterator[bytes]:
    """Yield actors by id, as members of a JSON object. Values that events lack come from dashboard responses.

    `camel_case` converts all keys, as Ray does in its actor details.
    """
    measured = await view.dashboard_items("/logical/actors", "data", "actors")

    def encode(rows: list[Row]) -> bytes:
        actors = _actors(request, view, rows, measured)
        return json_members(google_style(actors) if camel_case else actors)

    async for items in encoded_items(view.batches("actors", *filters), encode):
        yield items


async def dashboard_actor(request: Request, view: SessionView, actor_id: str) -> dict[str, Any] | None:
    rows = await view.rows("actors", Filter("actor_id", "=", actor_id), limit=1)
    measured = await view.dashboard_items("/logical/actors", "data", "actors") if rows else {}
    return next(iter(_actors(request, view, rows, measured).values()), None)


def _actors(
    request: Request, view: SessionView, rows: list[Row], measured: dict[str, msgspec.Raw]
) -> dict[str, dict[str, Any]]:
    defaults = _default_statistics(view)
    actors = {row["actor_id"]: defaults | _actor(row, decode_raw(measured.get(row["actor_id"]), {})) for row in rows}
    end_open_rows_for_browsers(request, view, actors.values(), "startTime", "endTime")
    return actors


def _default_statistics(view: SessionView) -> dict[str, Any]:
    """Return the statistics that Ray lists for an actor that was never sampled."""
    tpus: dict[str, Any] = {} if view.is_before(TPUS_SINCE) else {"tpus": []}
    return {"gpus": [], **tpus, "mem": [], "processStats": None}


def _actor(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    optional = {"placementGroupId": row["placement_group_id"], "callSite": row["call_site"]}
    dead = {} if measured.get("state") != "DEAD" else measured
    return {
        **measured,
        "actorId": row["actor_id"],
        "jobId": row["job_id"],
        "state": row["state"],
        "pid": row["pid"] or 0,
        "address": {
            "nodeId": row["node_id"] or _NIL_ID,
            "ipAddress": row["node_ip"] or "",
            "port": row["port"] or _measured_port(row, measured),
            "workerId": row["worker_id"] or _NIL_ID,
        },
        "name": row["name"] or "",
        "numRestarts": str(row["num_restarts"]),
        "className": row["class_name"] or "",
        "actorClass": row["class_name"] or "",
        # The dashboard's times are some milliseconds earlier than those of events.
        "startTime": measured.get("startTime") or row["start_time_ms"] or 0,
        "endTime": dead.get("endTime") or row["end_time_ms"] or 0,
        "timestamp": dead.get("timestamp") or float(row["end_time_ms"] or row["changed_ms"] or 0),
        "reprName": row["repr_name"] or measured.get("reprName") or "",
        "labelSelector": decode_json(row["label_selector"], {}),
        "requiredResources": plain_resources(decode_json(row["required_resources"], {})),
        "exitDetail": exit_detail(row),
        **({"workerId": row["worker_id"]} if row["worker_id"] else {}),
        **{key: value for key, value in optional.items() if value},
    }


def _measured_port(row: dict[str, Any], measured: dict[str, Any]) -> int:
    """Return the port from the last dashboard response about the same worker, because Ray before 2.54 exports none."""
    address = nested_dict(measured, "address")
    port = address.get("port")
    return port if isinstance(port, int) and row["worker_id"] and address.get("workerId") == row["worker_id"] else 0


def exit_detail(row: dict[str, Any]) -> str:
    for name, context in decode_json(row["death_cause"], {}).items():
        text = context.get(_DEATH_MESSAGE_FIELDS.get(name, "")) if isinstance(context, dict) else None
        if text:
            return str(text)
    return "The session ended before Ray reported an end." if row["closed_by_history"] else "-"


def plain_resources(resources: dict[str, float]) -> dict[str, float]:
    """Replace resource names of placement group bundles by the requested names."""
    plain: dict[str, float] = {}
    for name, amount in resources.items():
        base, _, suffix = name.partition("_group_")
        if not suffix:
            plain[name] = amount
        elif base != "bundle":
            plain[base] = amount
    return plain
