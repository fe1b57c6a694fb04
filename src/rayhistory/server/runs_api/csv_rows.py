"""Rows as CSV. Names come from clusters, so spreadsheets must not read them as formulas."""

import csv
import io
from collections.abc import Iterable, Sequence

from starlette.responses import Response

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_response(columns: Sequence[str], rows: Iterable[Sequence[object]], name: str) -> Response:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(text.getvalue(), headers=headers, media_type="text/csv")


def _cell(value: object) -> object:
    if value is None:
        return ""
    is_formula = isinstance(value, str) and value.startswith(_FORMULA_STARTS)
    return f"'{value}" if is_formula else value
