"""Ray's API below a session's address, one file per family."""

from starlette.routing import BaseRoute

from rayhistory.server.routes import (
    actors,
    cluster,
    course,
    dashboards,
    jobs,
    logs,
    metrics,
    nodes,
    rows,
    state,
    summaries,
    timeline,
)

SESSION_ROUTES: list[BaseRoute] = [
    *nodes.ROUTES,
    *jobs.ROUTES,
    *actors.ROUTES,
    *summaries.ROUTES,
    *timeline.ROUTES,
    *logs.ROUTES,
    *metrics.ROUTES,
    *cluster.ROUTES,
    *dashboards.ROUTES,
    *course.ROUTES,
    *rows.ROUTES,
    *state.ROUTES,
]
