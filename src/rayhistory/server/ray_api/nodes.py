"""Nodes in the shape of the dashboard's pages: from events, with statistics of the last dashboard response."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.server.http.json_lists import encoded_items, json_items, json_members, rest_chunks
from rayhistory.server.http.response_cache import LARGE_RESPONSE_ROWS, json_list_response
from rayhistory.server.http.responses import google_style, rest_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.ray_api.dashboard_actors import dashboard_actors
from rayhistory.server.untrusted_json import decode_json, decode_raw, dicts_in, nested_dict
from rayhistory.server.view import SessionView

_SUMMARY_PATH = "/nodes?view=summary"
_ORDER = ("-is_head", "start_time_ms")

_DEFAULT_STATS: dict[str, Any] = {
    "cpu": 0.0,
    "cpus": [0, 0],
    "bootTime": 0,
    "loadAvg": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    "networkSpeed": [0.0, 0.0],
    "cmdline": [],
    "disk": {},
    "gpus": [],
    "tpus": [],
}
"""Fields that the node page reads without checking that they exist."""


def displayed_state(row: dict[str, Any]) -> str:
    """Return the state for the pages.

    A node that was alive at session end is ALIVE, because the Logs page hides dead nodes.
    """
    return "ALIVE" if row["closed_by_history"] else str(row["state"])


def _node(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    raylet = nested_dict(measured, "raylet")
    return {
        **_DEFAULT_STATS,
        "now": (row["end_time_ms"] or row["start_time_ms"] or 0) / 1000,
        "hostname": row["hostname"] or row["node_name"] or "",
        "ip": row["node_ip"] or "",
        **measured,
        "raylet": {**raylet, **_raylet(row, raylet)},
    }


def _raylet(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    state = displayed_state(row)
    resources = decode_json(row["resources"], {})
    return {
        "nodeId": row["node_id"],
        "nodeManagerAddress": row["node_ip"] or "",
        "nodeManagerHostname": row["hostname"] or "",
        "resourcesTotal": google_style(resources),
        "nodeName": row["node_name"] or "",
        "instanceId": row["instance_id"] or "",
        "instanceTypeName": row["instance_type_name"] or "",
        "nodeTypeName": measured.get("nodeTypeName") or decode_json(row["labels"], {}).get("ray.io/node-group", ""),
        "startTimeMs": str(row["start_time_ms"] or 0),
        "endTimeMs": "0" if state == "ALIVE" else str(row["end_time_ms"] or 0),
        "isHeadNode": row["is_head"],
        "labels": decode_json(row["labels"], {}),
        "numWorkers": measured.get("numWorkers", 0),
        "objectStoreUsedMemory": measured.get("objectStoreUsedMemory", 0),
        "objectStoreAvailableMemory": measured.get(
            "objectStoreAvailableMemory", resources.get("object_store_memory", 0)
        ),
        "state": state,
        "stateMessage": None if state == "ALIVE" else row["state_message"],
    }


def _logical_resources(row: dict[str, Any]) -> str:
    """Return the total resources of a node. Unknown usage is shown as zero."""
    lines = []
    for name, amount in sorted(decode_json(row["resources"], {}).items()):
        if name.startswith(("node:", "accelerator_type:")) or not _is_amount(amount):
            continue
        if "memory" in name:
            lines.append(f"0B/{_format_bytes(amount)} {name}")
        else:
            lines.append(f"0.0/{float(amount)} {name}")
    return "\n".join(lines)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**63


def _format_bytes(number: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return f"{int(number)}B"


async def nodes(request: Request, view: SessionView) -> Response:
    view_name = request.query_params.get("view", "summary").lower()
    if view_name not in ("summary", "hostnamelist"):
        return rest_response(f"Unknown view {view_name}", {}, result=False, status=500)
    max_rows = await view.index.max_rows(Query("nodes"), LARGE_RESPONSE_ROWS)
    chunks = _host_name_chunks(view) if view_name == "hostnamelist" else await _summary_chunks(view)
    return await json_list_response(request, chunks, max_rows)


def _host_name_chunks(view: SessionView) -> AsyncIterator[bytes]:
    seen: set[str | None] = set()

    def encode(rows: list[Row]) -> bytes:
        names = [row["hostname"] or row["node_name"] for row in rows if displayed_state(row) == "ALIVE"]
        new = [name for name in dict.fromkeys(names) if name not in seen]
        seen.update(new)
        return json_items(new)

    names = encoded_items(view.batches("nodes", sort=_ORDER), encode)
    return rest_chunks("Node hostname list fetched.", b'{"hostNameList":[', names, b"]}")


async def _summary_chunks(view: SessionView) -> AsyncIterator[bytes]:
    summary = await view.dashboard_items(_SUMMARY_PATH, "data", "summary")
    measured = await asyncio.to_thread(lambda: {_node_id(node): node for node in summary.values()})
    usage = await view.dashboard_items(_SUMMARY_PATH, "data", "nodeLogicalResources")

    def encode_nodes(rows: list[Row]) -> bytes:
        return json_items([_node(row, decode_raw(measured.get(row["node_id"]), {})) for row in rows])

    def encode_resources(rows: list[Row]) -> bytes:
        return json_members(
            {row["node_id"]: decode_raw(usage.get(row["node_id"]), None) or _logical_resources(row) for row in rows}
        )

    found = encoded_items(view.batches("nodes", sort=_ORDER), encode_nodes)
    resources = encoded_items(view.batches("nodes", sort=_ORDER), encode_resources)
    return rest_chunks("Node summary fetched.", b'{"summary":[', found, b'],"nodeLogicalResources":{', resources, b"}}")


def _node_id(node: msgspec.Raw) -> str:
    """Return the id of a node in a dashboard response; empty if it has none."""
    try:
        return msgspec.json.decode(node, type=_MeasuredNode).raylet.node_id
    except (msgspec.MsgspecError, RecursionError):
        return ""


class _MeasuredRaylet(msgspec.Struct, frozen=True, rename="camel"):
    node_id: str = ""


class _MeasuredNode(msgspec.Struct, frozen=True):
    raylet: _MeasuredRaylet = _MeasuredRaylet()


async def node(request: Request, view: SessionView) -> Response:
    node_id = request.path_params["node"]
    row = await view.row("nodes", Filter("node_id", "=", node_id))
    if row is None:
        raylet = {"nodeId": node_id, "objectStoreUsedMemory": 0, "objectStoreAvailableMemory": 0, "stateMessage": None}
        empty = {**_DEFAULT_STATS, "raylet": raylet, "actors": {}, "workers": []}
        return rest_response("Node details fetched.", {"detail": empty})
    measured = nested_dict(await view.dashboard_response(f"/nodes/{row['node_id']}"), "data", "detail")
    workers = [_worker(worker) for worker in dicts_in(measured.pop("workers", None))]
    measured.pop("actors", None)
    detail = json_members(_node(row, measured) | {"workers": workers})
    on_node = Filter("node_id", "=", row["node_id"])
    actors = dashboard_actors(request, view, on_node, camel_case=True)
    max_rows = await view.index.max_rows(Query("actors", filters=(on_node,)), LARGE_RESPONSE_ROWS)
    chunks = rest_chunks("Node details fetched.", b'{"detail":{', detail, b',"actors":{', actors, b"}}}")
    return await json_list_response(request, chunks, max_rows)


def _worker(worker: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that the page reads without checking: statistics of a core worker, and memory values as numbers.

    On Linux, Ray reports some memory values that are not numbers.
    """
    memory = {
        name: amount for name, amount in nested_dict(worker, "memoryInfo").items() if isinstance(amount, int | float)
    }
    return {**worker, "memoryInfo": memory, "coreWorkerStats": dicts_in(worker.get("coreWorkerStats")) or [{}]}


ROUTES: list[BaseRoute] = [
    view_route("/nodes", nodes),
    view_route("/nodes/{node}", node),
]
