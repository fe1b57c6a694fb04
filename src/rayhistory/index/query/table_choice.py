"""Choose the stored table that answers a query, and find the task ids that the query can match."""

from rayhistory.index.fold.response_files import LAST_RESPONSES_TABLE, RESPONSES_TABLE
from rayhistory.index.fold.served_tables import TASK_LIST_COLUMNS
from rayhistory.index.query.query import Query

_LIST_COLUMNS = set(TASK_LIST_COLUMNS)
_LARGE_PAGE_ROWS = 1_000


def best_file(query: Query, columns: tuple[str, ...]) -> str:
    """Return the smallest table that can serve the query.

    Tasks are stored twice: whole rows ordered by id, and list columns ordered by state and time, which is smaller. The
    last response of each dashboard path has a separate table.
    """
    if query.table == RESPONSES_TABLE and query.sort == ("-ns",) and query.limit == 1:
        return LAST_RESPONSES_TABLE if query.filter_columns <= {"uri"} else RESPONSES_TABLE
    if query.table != "tasks" or (query.limit is not None and query.sort[:1] == ("task_id",)):
        return query.table
    if any(condition.column == "task_id" and condition.operator in ("=", "in") for condition in query.plain_filters):
        return query.table
    needed = {*columns, *query.filter_columns, *(name.lstrip("-") for name in query.sort)}
    return "task_list" if needed <= _LIST_COLUMNS else "tasks"


def needs_key_lookup(query: Query) -> bool:
    """Return whether sorting whole task rows would need much memory.

    A sort by id needs none, because rows are stored by id.
    """
    if query.table != "tasks" or not query.sort or query.limit is None or query.limit <= _LARGE_PAGE_ROWS:
        return False
    return query.order[0] != "task_id" and (not query.columns or not set(query.columns) <= _LIST_COLUMNS)


def task_id_range(query: Query) -> tuple[str, str]:
    """Return the lowest and highest task id that can match the filters."""
    low, high = "", "g"
    for condition in query.plain_filters:
        operator, value = condition.operator, condition.value
        if condition.column != "task_id" or not value:
            continue
        values = value if operator == "in" else [str(value).lower() if operator == "=" else value]
        if operator in ("=", "in", ">=", ">"):
            low = max(low, min(map(str, values)))
        if operator in ("=", "in", "<=", "<"):
            high = min(high, max(map(str, values)))
    if query.after and query.after[0] and query.order[0] == "task_id":
        low = max(low, str(query.after[0]))
    return low, high
