"""Nodes as the dashboard's pages read them: from events, with what the dashboard last measured on each."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.index.query import Filter
from rayhistory.server.answers import google_style, inside, objects, parsed, rest_answer
from rayhistory.server.routes.actors import dashboard_actors
from rayhistory.server.routing import get
from rayhistory.server.view import SessionView

_SUMMARY = "/nodes?view=summary"

_NOTHING_MEASURED: dict[str, Any] = {
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
"""What the node's page reads without asking whether it is there."""


def displayed_state(row: dict[str, Any]) -> str:
    """A node that lived until the session's end counts as alive here: the Logs page lists no others."""
    return "ALIVE" if row["closed_by_history"] else str(row["state"])


def _node(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    raylet = inside(measured, "raylet")
    return {
        **_NOTHING_MEASURED,
        "now": (row["end_time_ms"] or row["start_time_ms"] or 0) / 1000,
        "hostname": row["hostname"] or row["node_name"] or "",
        "ip": row["node_ip"] or "",
        **measured,
        "raylet": {**raylet, **_raylet(row, raylet)},
    }


def _raylet(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    state = displayed_state(row)
    resources = parsed(row["resources"], {})
    return {
        "nodeId": row["node_id"],
        "nodeManagerAddress": row["node_ip"] or "",
        "nodeManagerHostname": row["hostname"] or "",
        "resourcesTotal": google_style(resources),
        "nodeName": row["node_name"] or "",
        "instanceId": row["instance_id"] or "",
        "instanceTypeName": row["instance_type_name"] or "",
        "nodeTypeName": measured.get("nodeTypeName") or parsed(row["labels"], {}).get("ray.io/node-group", ""),
        "startTimeMs": str(row["start_time_ms"] or 0),
        "endTimeMs": "0" if state == "ALIVE" else str(row["end_time_ms"] or 0),
        "isHeadNode": row["is_head"],
        "labels": parsed(row["labels"], {}),
        "numWorkers": measured.get("numWorkers", 0),
        "objectStoreUsedMemory": measured.get("objectStoreUsedMemory", 0),
        "objectStoreAvailableMemory": measured.get(
            "objectStoreAvailableMemory", resources.get("object_store_memory", 0)
        ),
        "state": state,
        "stateMessage": None if state == "ALIVE" else row["state_message"],
    }


def _logical_resources(row: dict[str, Any]) -> str:
    """What could be used on a node, where it is not known how much was in use."""
    lines = []
    for name, amount in sorted(parsed(row["resources"], {}).items()):
        if name.startswith(("node:", "accelerator_type:")) or not _is_amount(amount):
            continue
        if "memory" in name:
            lines.append(f"0B/{_size(amount)} {name}")
        else:
            lines.append(f"0.0/{float(amount)} {name}")
    return "\n".join(lines)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 2**63


def _size(number: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return f"{int(number)}B"


async def nodes(request: Request, view: SessionView) -> Response:
    kind = request.query_params.get("view", "summary").lower()
    rows = await view.rows("nodes", sort=("-is_head", "start_time_ms"))
    if kind == "hostnamelist":
        names = [row["hostname"] or row["node_name"] for row in rows if displayed_state(row) == "ALIVE"]
        return rest_answer("Node hostname list fetched.", {"hostNameList": list(dict.fromkeys(names))})
    if kind != "summary":
        return rest_answer(f"Unknown view {kind}", {}, result=False, status=500)
    answer = inside(await view.snapshot(_SUMMARY), "data")
    measured = {str(inside(node, "raylet").get("nodeId")): node for node in objects(answer.get("summary"))}
    usage = inside(answer, "nodeLogicalResources")
    return rest_answer(
        "Node summary fetched.",
        {
            "summary": [_node(row, measured.get(row["node_id"], {})) for row in rows],
            "nodeLogicalResources": {
                row["node_id"]: usage.get(row["node_id"]) or _logical_resources(row) for row in rows
            },
        },
    )


async def node(request: Request, view: SessionView) -> Response:
    name = request.path_params["node"]
    row = await view.row("nodes", Filter("node_id", "=", name))
    if row is None:
        raylet = {"nodeId": name, "objectStoreUsedMemory": 0, "objectStoreAvailableMemory": 0, "stateMessage": None}
        nothing = {**_NOTHING_MEASURED, "raylet": raylet, "actors": {}, "workers": []}
        return rest_answer("Node details fetched.", {"detail": nothing})
    measured = inside(await view.snapshot(f"/nodes/{row['node_id']}"), "data", "detail")
    detail = _node(row, measured)
    detail["actors"] = google_style(await dashboard_actors(request, view, Filter("node_id", "=", row["node_id"])))
    detail["workers"] = [_worker(worker) for worker in objects(measured.get("workers"))]
    return rest_answer("Node details fetched.", {"detail": detail})


def _worker(worker: dict[str, Any]) -> dict[str, Any]:
    """The page reads the first core worker's statistics, and every figure of memory, without asking whether there is
    one: on Linux Ray has some figures of memory that are none."""
    memory = {name: amount for name, amount in inside(worker, "memoryInfo").items() if isinstance(amount, int | float)}
    return {**worker, "memoryInfo": memory, "coreWorkerStats": objects(worker.get("coreWorkerStats")) or [{}]}


ROUTES: list[BaseRoute] = [
    get("/nodes", nodes),
    get("/nodes/{node}", node),
]
