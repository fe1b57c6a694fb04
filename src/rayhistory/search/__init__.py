"""Search in the log files of a session. Results are the same as ripgrep's; patterns have RE2's syntax."""

from rayhistory.search.pattern import SearchPattern
from rayhistory.search.scanner import Scan, Scanner
from rayhistory.search.search_query import SearchQuery

__all__ = ["Scan", "Scanner", "SearchPattern", "SearchQuery"]
