"""Response bodies about runs."""

from typing import Annotated

from msgspec import Meta, Struct

from rayhistory.runs.run_groups import RunGroup


class RunList(Struct):
    """One page of the groups of runs that the visitor may see."""

    runs: list[RunGroup]
    total: Annotated[int, Meta(description="number of matching groups, on all pages")]
    next: Annotated[str | None, Meta(description="URL of the next page; null on the last page")]
    namespaces: list[str]
    unsummarized: Annotated[
        int | None, Meta(description="sessions that have no summary yet; null until all sessions were listed once")
    ] = 0
    quarantined: Annotated[int, Meta(description="number of summaries that could not be read so far")] = 0
    unlisted: Annotated[int, Meta(description="older sessions beyond the limit")] = 0
