"""The diagnosis of a session as JSON and as Markdown."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.diagnosis.markdown import to_markdown
from rayhistory.server.history_api.diagnosis_report import read_diagnosis
from rayhistory.server.http.error_responses import api_error_response
from rayhistory.server.http.responses import json_response
from rayhistory.server.http.view_routes import view_route
from rayhistory.server.view import SessionView


async def session_diagnosis(request: Request, view: SessionView) -> Response:
    return json_response(await read_diagnosis(request, view))


async def diagnosis_markdown(request: Request, view: SessionView) -> Response:
    text = to_markdown(await read_diagnosis(request, view), f"{view.ref.cluster} {view.ref.session}")
    return Response(text, media_type="text/markdown")


# Not cached: a newer build of the diagnosis may exist for the same tables.
ROUTES: list[BaseRoute] = [
    view_route("/api/history/diagnosis", session_diagnosis, cache=False, on_error=api_error_response),
    view_route("/diagnosis.json", session_diagnosis, cache=False, on_error=api_error_response),
    view_route("/diagnosis.md", diagnosis_markdown, cache=False, on_error=api_error_response),
]
