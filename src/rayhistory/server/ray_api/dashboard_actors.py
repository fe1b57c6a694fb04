"""Actors as the dashboard's pages read them."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory import ids
from rayhistory.index.query import Filter, Query
from rayhistory.server.answers import google_style, inside, parsed, rest_answer
from rayhistory.server.kept import FEW
from rayhistory.server.routing import closed_for_pages, get
from rayhistory.server.view import SessionView

_NIL = "f" * (2 * ids.NODE)
_DEATHS = {
    "actor_died_error_context": "error_message",
    "runtime_env_failed_context": "error_message",
    "actor_unschedulable_context": "error_message",
    "creation_task_failure_context": "formatted_exception_string",
}


async def dashboard_actors(request: Request, view: SessionView, *filters: Filter) -> dict[str, dict[str, Any]]:
    """Actors by id. What only the dashboard measured is what it last said of each."""
    rows = await view.rows("actors", *filters)
    measured = inside(await view.snapshot("/logical/actors"), "data", "actors")
    found = {row["actor_id"]: _actor(row, inside(measured, row["actor_id"])) for row in rows}
    closed_for_pages(request, view, found.values(), "startTime", "endTime")
    return found


def _actor(row: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    optional = {"placementGroupId": row["placement_group_id"], "callSite": row["call_site"]}
    told = {} if measured.get("state") != "DEAD" else measured
    return {
        "gpus": [],
        "tpus": [],
        "mem": [],
        "processStats": None,
        **measured,
        "actorId": row["actor_id"],
        "jobId": row["job_id"],
        "state": row["state"],
        "pid": row["pid"] or 0,
        "address": {
            "nodeId": row["node_id"] or _NIL,
            "ipAddress": row["node_ip"] or "",
            "port": row["port"] or 0,
            "workerId": row["worker_id"] or _NIL,
        },
        "name": row["name"] or "",
        "numRestarts": str(row["num_restarts"]),
        "className": row["class_name"] or "",
        "actorClass": row["class_name"] or "",
        # Events are some milliseconds later than what the dashboard says.
        "startTime": measured.get("startTime") or row["start_time_ms"] or 0,
        "endTime": told.get("endTime") or row["end_time_ms"] or 0,
        "timestamp": told.get("timestamp") or float(row["end_time_ms"] or row["changed_ms"] or 0),
        "reprName": row["repr_name"] or measured.get("reprName") or "",
        "labelSelector": parsed(row["label_selector"], {}),
        "requiredResources": plain_resources(parsed(row["required_resources"], {})),
        "exitDetail": exit_detail(row),
        **({"workerId": row["worker_id"]} if row["worker_id"] else {}),
        **{key: value for key, value in optional.items() if value},
    }


def exit_detail(row: dict[str, Any]) -> str:
    for name, context in parsed(row["death_cause"], {}).items():
        text = context.get(_DEATHS.get(name, "")) if isinstance(context, dict) else None
        if text:
            return str(text)
    return "The session ended before Ray reported an end." if row["closed_by_history"] else "-"


def plain_resources(resources: dict[str, float]) -> dict[str, float]:
    """Names that Ray makes for a placement group's bundles, mapped back to what was asked for."""
    plain: dict[str, float] = {}
    for name, amount in resources.items():
        base, _, suffix = name.partition("_group_")
        if not suffix:
            plain[name] = amount
        elif base != "bundle":
            plain[base] = amount
    return plain


async def actors(request: Request, view: SessionView) -> Response:
    wanted = request.query_params.get("ids")
    filters = [Filter("actor_id", "in", wanted.split(","))] if wanted else []
    await view.index.fetched(Query("actors"))
    most = await view.index.most(Query("actors", filters=tuple(filters)), FEW)
    async with request.app.state.answers.place(most):
        return rest_answer("All actors fetched.", {"actors": await dashboard_actors(request, view, *filters)})


async def actor(request: Request, view: SessionView) -> Response:
    name = request.path_params["actor"]
    found = await dashboard_actors(request, view, Filter("actor_id", "=", name))
    return rest_answer("Actor details fetched.", {"detail": google_style(found.get(name.lower()))})


ROUTES: list[BaseRoute] = [
    get("/logical/actors", actors),
    get("/logical/actors/{actor}", actor),
]
