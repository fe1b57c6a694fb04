"""All API routes below the path of a session."""

from starlette.routing import BaseRoute

from rayhistory.server.history_api import (
    dashboard_versions,
    diagnosis_routes,
    gap_routes,
    overview_routes,
    sql_queries,
    table_rows,
    task_output,
)
from rayhistory.server.metrics_api import chart_markers, charts, datasets, metric_points, prometheus
from rayhistory.server.ray_api import (
    actors,
    chrome_trace,
    cluster,
    grafana,
    jobs,
    log_files,
    nodes,
    state,
    summaries,
)
from rayhistory.server.search_api import log_search

SESSION_ROUTES: list[BaseRoute] = [
    *nodes.ROUTES,
    *jobs.ROUTES,
    *actors.ROUTES,
    *summaries.ROUTES,
    *chrome_trace.ROUTES,
    *log_files.ROUTES,
    *datasets.ROUTES,
    *metric_points.ROUTES,
    *cluster.ROUTES,
    *chart_markers.ROUTES,
    *charts.ROUTES,
    *dashboard_versions.ROUTES,
    *grafana.ROUTES,
    *log_search.ROUTES,
    *overview_routes.ROUTES,
    *prometheus.ROUTES,
    *diagnosis_routes.ROUTES,
    *gap_routes.ROUTES,
    *sql_queries.ROUTES,
    *table_rows.ROUTES,
    *task_output.ROUTES,
    *state.ROUTES,
]
