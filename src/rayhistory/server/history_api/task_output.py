"""The location of a task's output in its worker's log files, and which of its fields were inferred."""

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import LogNotFound, UsageError
from rayhistory.index.query.query import Filter
from rayhistory.server.history_api.api_types import TaskOutputLocation
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.logs.task_log_info import infer_log_info, task_log_info
from rayhistory.server.view import SessionView


async def task_output(request: Request, view: SessionView) -> Response:
    task_id, attempt = request.query_params.get("task_id", ""), request.query_params.get("attempt", "")
    if not task_id:
        raise UsageError("task_id is required")
    if not re.fullmatch(r"[0-9]{0,9}", attempt):
        raise UsageError(f"invalid attempt {attempt[:40]!r}: use a whole number")
    filters = [Filter("task_id", "in", (task_id.lower(),))]
    filters += [Filter("attempt_number", "=", int(attempt))] if attempt else []
    attempts = await view.rows("tasks", *filters, sort=("-attempt_number",), limit=1)
    if not attempts:
        raise LogNotFound(
            f"attempt {attempt} of task {task_id} not found in this session"
            if attempt
            else f"task {task_id} not found in this session"
        )
    inferred = await infer_log_info(view, attempts)
    (row,) = attempts
    return json_response(
        TaskOutputLocation(
            task_id=row["task_id"],
            attempt_number=row["attempt_number"],
            node_id=row["node_id"],
            task_log_info=task_log_info(row),
            inferred=inferred.get((row["task_id"], row["attempt_number"]), []),
        )
    )


ROUTES: list[BaseRoute] = [view_route("/api/history/task_log_info", task_output, on_error=api_error_response)]
