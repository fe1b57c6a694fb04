"""Errors of a query, in Prometheus' two kinds. If Prometheus has the same error, its message is used."""

from rayhistory.errors import UsageError


class PromqlError(UsageError):
    """Root of the errors of a query."""

    error_type = "bad_data"
    """Prometheus' `errorType`."""
    code = "promql_invalid"


class QuerySyntaxError(PromqlError):
    """The query cannot be parsed, or its types do not fit."""


class NotSupported(PromqlError):
    """The engine does not support a feature of PromQL. The message names it."""

    code = "promql_not_supported"


class EvaluationFailed(PromqlError):
    """The query is valid but fails on this data."""

    error_type = "execution"
    code = "promql_failed"
    http_status = 422
