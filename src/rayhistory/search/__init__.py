"""Search in the log files of a session: lines as ripgrep finds them, patterns in RE2's syntax."""

from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery

__all__ = ["Scan", "Scanner", "SearchPattern", "SearchQuery"]
