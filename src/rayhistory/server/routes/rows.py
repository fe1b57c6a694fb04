"""Our own way to the tables: any columns, filters and order, page by page."""

from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import UsageError
from rayhistory.index import ask
from rayhistory.index.query import Query, Row
from rayhistory.server.kept import FEW, InPieces
from rayhistory.server.redaction import MASK, is_browser, masked_text
from rayhistory.server.routing import get, own_answer_to
from rayhistory.server.view import SessionView

_MASKED = {"runtime_env", "body"}
_LARGEST_PAGE = 16 << 20
_PARAMETERS = {"columns", "where", "sort", "limit", "cursor", "count"}


async def rows(request: Request, view: SessionView) -> Response:
    given = request.query_params
    if unknown := set(given) - _PARAMETERS:
        raise UsageError(f"unknown parameters {', '.join(sorted(unknown))}: there are {', '.join(sorted(_PARAMETERS))}")
    query = ask.question(
        request.path_params["table"],
        columns=given.get("columns", ""),
        where=given.getlist("where"),
        sort=given.get("sort", ""),
        limit=given.get("limit", ask.DEFAULT_LIMIT),
        cursor=given.get("cursor", ""),
    )
    if is_browser(request):
        _check_no_masked(query)
    if query.table == "snapshots":  # each may be megabytes
        query = await view.index.fitting(query, _LARGEST_PAGE)
    most = await view.index.most(query, FEW)
    await view.index.fetched(query)
    pieces = _pieces(view, query, counted=given.get("count") == "1", mask=is_browser(request))
    return InPieces(pieces, most)


async def _pieces(view: SessionView, query: Query, *, counted: bool, mask: bool) -> AsyncIterator[bytes]:
    found, last, begin = 0, None, b'{"rows":['
    async for rows in view.index.portions(query.with_order()):
        found, last = found + len(rows), rows[-1]
        shown = msgspec.json.encode([_shown(row, query.columns, mask=mask) for row in rows])
        rows.clear()
        yield begin + shown[1:-1]
        begin = b","
    following = ask.cursor_after(query, last) if last and found == query.limit else None
    total = {"total": await view.index.count(ask.without_place(query))} if counted else {}
    yield (b"" if found else begin) + b"]," + msgspec.json.encode({"next": following, **total})[1:]


def _check_no_masked(query: Query) -> None:
    """The order of rows, and which of them there are, would tell what is masked."""
    asked = {name.lstrip("-") for name in query.sort} | {condition.column for condition in query.filters}
    if hidden := sorted(asked & _MASKED):
        raise UsageError(
            f"{' and '.join(hidden)} may have secrets, which browsers do not see: "
            "there it can neither be sorted by nor be in a condition"
        )


def _shown(row: Row, columns: tuple[str, ...], *, mask: bool) -> Row:
    """The columns that were asked for; browsers do not see the values of environment variables."""
    shown = {name: row[name] for name in columns} if columns else row
    if mask:
        if "runtime_env" in shown:
            shown["runtime_env"] = masked_text(shown["runtime_env"])
        if "env_vars" in (shown.get("body") or ""):
            shown["body"] = MASK
    return shown


ROUTES: list[BaseRoute] = [get("/api/history/rows/{table}", rows, failed=own_answer_to)]
