"""The synchronous library, for scripts and notebooks."""

import html
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import httpx
from arro3.core import Table

from rayhistory.api.async_history import AsyncHistory, AsyncSession, RowSelection
from rayhistory.api.background_loop import BackgroundLoop
from rayhistory.api.rows import Row, RowList, Rows, rows_html
from rayhistory.errors import UsageError, disk_full_error

OpenHttp = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


class History:
    """All sessions of a server or a store. Close it, or use it in a `with` statement."""

    def __init__(self, open_http: OpenHttp, source: str) -> None:
        self._loop = BackgroundLoop()
        self._source = source
        try:
            http = self._loop.run(self._loop.resources.enter_async_context(open_http()))
        except BaseException:
            self._loop.stop()
            raise
        self._history = AsyncHistory(http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<history of {self._source}>"

    def close(self) -> None:
        self._loop.run(self._loop.resources.aclose())
        self._loop.stop()

    def sessions(self, **filters: str) -> RowList:
        """Return the sessions, newest first.

        Filters: q, namespace, cluster, state, failed, owner, since, from_, to, sort.
        """
        return self._loop.run(self._history.sessions(**filters))

    def session(self, name: str = "") -> "Session":
        """Return a session by name, namespace/cluster or namespace/~rayjob/name, each with or without @time.

        Without a name, return the newest session. Raise `SessionNotFound` if it is unknown.
        """
        return Session(self._loop, self._loop.run(self._history.session(name)))

    def compare(self, *sessions: "Session | str") -> "Document":
        """Compare up to ten sessions: environment, functions and failures."""
        opened = [self.session(each) if isinstance(each, str) else each for each in sessions]
        return Document(self._loop.run(self._history.compare(*(each.asynchronous for each in opened))))

    def runs(self, **filters: str) -> RowList:
        """Return groups of runs of the same job. Filters: q, namespace, owner, kind, since, failed, regressed, sort."""
        return self._loop.run(self._history.runs(**filters))

    def search(self, text: str, **options: Any) -> RowList:
        """Search the logs of all sessions, newest first."""
        return self._loop.run(self._history.search(text, **options))


class Document(dict[str, Any]):
    """A JSON document that notebooks display as a table."""

    def _repr_html_(self) -> str:
        facts = [{"": name, " ": value} for name, value in self.items() if not isinstance(value, list)]
        tables = [
            f"<h4>{html.escape(name)}</h4>{rows_html([row for row in value if isinstance(row, dict)])}"
            for name, value in self.items() if isinstance(value, list) and value
        ]  # fmt: skip
        return rows_html(facts) + "".join(tables)


class Session:
    """One session, in its latest state or as of a time."""

    def __init__(self, loop: BackgroundLoop, session: AsyncSession) -> None:
        self._loop = loop
        self.asynchronous = session

    def __repr__(self) -> str:
        return f"<session {self.name}>"

    def _repr_html_(self) -> str:
        return f'<a href="{html.escape(self.url)}">{html.escape(self.name)}</a>' + rows_html([self.overview()])

    @property
    def name(self) -> str:
        """The path of the session: namespace/cluster/session, and @time if it is as of a time."""
        return self.asynchronous.name

    @property
    def url(self) -> str:
        return self.asynchronous.url

    @property
    def logs(self) -> "Logs":
        return Logs(self._loop, self.asynchronous)

    def rows(
        self, table: str, where: str = "", *, columns: str = "", sort: str = "", limit: int | None = None
    ) -> "TableQuery":
        """Select rows of a table (see docs/reference/tables.md), such as `where="state = FAILED and name ~ train"`."""
        return TableQuery(self._loop, self.asynchronous, RowSelection(table, where, columns, sort, limit))

    def tasks(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("tasks", where, **options)

    def actors(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("actors", where, **options)

    def jobs(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("jobs", where, **options)

    def nodes(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("nodes", where, **options)

    def workers(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("workers", where, **options)

    def placement_groups(self, where: str = "", **options: Any) -> "TableQuery":
        return self.rows("placement_groups", where, **options)

    def overview(self) -> Document:
        """Return start, end, state and failures over time."""
        return Document(self._loop.run(self.asynchronous.overview()))

    def gaps(self) -> Document:
        """Return the gaps of the session: missing or incomplete data."""
        return Document(self._loop.run(self.asynchronous.gaps()))

    def diagnose(self) -> Document:
        """Return why the session failed or was slow: verdict and findings."""
        return Document(self._loop.run(self.asynchronous.diagnose()))

    def metrics(
        self, query: str, *, start_ms: int | None = None, end_ms: int | None = None, step_ms: int | None = None
    ) -> RowList:
        """Evaluate a PromQL query over the session: one row per series and time."""
        return self._loop.run(self.asynchronous.metrics(query, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms))

    def sql(self, query: str, limit: int | None = None) -> RowList:
        """Run one SELECT on the tables: `select name, count(*) from tasks group by name`.

        If there are more than 10,000 rows, or more than `limit`, only the first are returned and `complete` is False.
        """
        return self._loop.run(self.asynchronous.sql(query, limit))


class Logs:
    """The log files of a session."""

    def __init__(self, loop: BackgroundLoop, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    def search(self, text: str, **options: Any) -> RowList:
        """Return the lines that contain a text. Options: regex, case, word, node, file, task, actor, limit, …"""
        return RowList(list(self._loop.iterate(self._session.search(text, **options))))

    def files(self, node: str, glob: str = "**") -> list[str]:
        """Return the names of a node's log files."""
        return self._loop.run(self._session.log_files(node, glob))

    def read(self, **parameters: Any) -> str:
        """Return a log as text: `read(task_id=…)`, `actor_id`, `submission_id`, or `node_id` and `filename`."""
        chunks = self._loop.iterate(self._session.read_log(**parameters))
        return b"".join(chunks).decode(errors="replace")


class TableQuery(Rows):
    """Selected rows of one table."""

    def __init__(self, loop: BackgroundLoop, session: AsyncSession, selection: RowSelection) -> None:
        self._loop = loop
        self._session = session
        self._selection = selection

    def __repr__(self) -> str:
        where = self._selection.where
        return f"<{self._selection.table} of {self._session.name}{' where ' + where if where else ''}>"

    def __iter__(self) -> Iterator[Row]:
        for page in self._loop.iterate(self._session.pages(self._selection)):
            yield from page

    def __len__(self) -> int:
        return self._loop.run(self._session.count(self._selection))

    def _table(self) -> Table:
        try:
            return self._downloaded_table()
        except OSError as error:
            raise disk_full_error(error) or error from None

    def _downloaded_table(self) -> Table:
        if self._selection.is_whole_table and (stored := self._stored_table()) is not None:
            return stored
        # Imported here, because numpy takes a fifth of the time to start a command.
        from rayhistory.api.arrow_files import read_parquet  # noqa: PLC0415

        with tempfile.NamedTemporaryFile(prefix="rayhistory-", suffix=".parquet") as file:
            self._loop.run(self._session.write_parquet(self._selection, file))
            file.flush()
            return read_parquet(file.name)

    def _stored_table(self) -> Table | None:
        """Return the table from the stored files, without encoding its rows; None if the server is too old for this."""
        # Imported here, because numpy takes a fifth of the time to start a command.
        from rayhistory.api.arrow_files import read_archive  # noqa: PLC0415

        with tempfile.TemporaryFile(prefix="rayhistory-") as file:
            try:
                self._loop.run(self._session.write_archive(self._selection.table, file))
            except UsageError:
                return None
            return read_archive(file)
