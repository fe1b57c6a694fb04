"""The metrics that nodes had, for charts of a cluster that may be gone."""

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.server.answers import json_answer
from rayhistory.server.metricfiles import Wanted
from rayhistory.server.routing import get_plain, own_answer_to, resolver_of, selection_of


async def metrics(request: Request) -> Response:
    """Without `name` all names; with it, the points of its series. Whatever else is asked for is a label."""
    labels = dict(request.query_params)
    try:
        name, node, step = labels.pop("name", None), labels.pop("node", None), _ms(labels.pop("step", "1"))
        moment = selection_of(request).as_of_ms
        default = Wanted() if moment is None else Wanted(end=moment)
        start, end = _ms(labels.pop("from", str(default.start))), _ms(labels.pop("to", str(default.end)))
        wanted = Wanted(node, start, min(end, default.end))
        found = await resolver_of(request).metrics(selection_of(request), wanted)
        if name is None:
            return json_answer(await asyncio.to_thread(found.names))
        return json_answer(await asyncio.to_thread(found.points, name, labels, wanted, max(1, step)))
    except RayHistoryError as error:
        return own_answer_to(error)


def _ms(text: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text):
        raise UsageError(f"not a number of milliseconds: {text!r}")
    return int(text)


ROUTES: list[BaseRoute] = [get_plain("/api/history/metrics", metrics)]
