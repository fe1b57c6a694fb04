"""The limits that the pages on security, reliability and access state are those of the code."""

import pytest

from rayhistory.access import rules_file, visitor
from rayhistory.access.modes import kubernetes
from rayhistory.collector.ingest import endpoint
from rayhistory.collector.logs import tailer, walk
from rayhistory.collector.session import ray_discovery
from rayhistory.collector.session_collector import _GONE_AFTER_S
from rayhistory.index.fold import sources
from rayhistory.index.query import where
from rayhistory.index.service import fair_slots
from rayhistory.live import head_proxy
from rayhistory.metrics import samples
from rayhistory.server import view
from rayhistory.server.http import admission, list_params
from rayhistory.server.metrics_api import metric_points, session_metrics
from rayhistory.server.routing import revocation
from rayhistory.sessions import catalog
from rayhistory.settings import Settings
from rayhistory.utc import MAX_CLOCK_SKEW_S
from support.paths import DOCS


def word(number: float) -> str:
    words: dict[float, str] = {2: "two", 4: "four", 5: "five", 10: "ten", 12: "twelve"}
    return words.get(number, f"{number:g}")


REVOKED_S = round(revocation._RECHECK_INTERVAL_S)
ALLOWED_S, DENIED_S = round(kubernetes._ALLOWED_TTL_S), round(kubernetes._DENIED_TTL_S)

SECURITY = [
    f"up to {REVOKED_S} s in an open stream or WebSocket",
    f"up to {REVOKED_S + ALLOWED_S} s with `--auth=kubernetes`",
    f"a time more than {ray_discovery._MAX_LEAD_S / 3600:.0f} hours in the future",
    f"{word(session_metrics._EVALUATION_SLOTS).capitalize()} queries are evaluated at a time",
    f"A line, array, event log or response above {sources.MAX_WHOLE_BYTES >> 20} MiB is skipped",
    f"tracks at most {walk.MAX_FILES:,} log files",
    f"stores at most {samples.MAX_SERIES:,} series per node and sample",
    f"share {endpoint._BODIES_BUDGET >> 20} MiB of memory",
    f"A dashboard response above {view._MAX_DECODED_BYTES >> 20} MiB is not decoded",
    f"at most {where.MAX_FILTERS} filters, {metric_points._MAX_LABELS} labels and {list_params._MAX_WORDS} search",
]
RELIABILITY = [
    f"notices the end within about {word(_GONE_AFTER_S)} seconds",
    f"older than `--vanished-after` ({Settings().vanished_after / 60:.0f} minutes)",
    f"only after {word(catalog._SILENCE_FACTOR)} times as long",
    f"a time more than {MAX_CLOCK_SKEW_S / 60:.0f} minutes after its object was stored",
    f"more than {tailer._MAX_TRUNCATED_VERSIONS} truncated versions",
    f"more than {tailer._MAX_REMOVED_VERSIONS:,} removed files of the same name",
    f"paths longer than {walk._MAX_NAME_BYTES} characters ({walk._MAX_NAME_BYTES // 4} if",
    f"more than {walk.MAX_FILES:,} log files per node",
]
ACCESS = [
    f"for {word(visitor._COOKIE_MAX_AGE_S / 3600)} hours",
    f"at least {rules_file._MIN_TOKEN_CHARS} characters",
    f"for up to {ALLOWED_S} seconds and a refused one for {DENIED_S}",
    f"are built {word(fair_slots._SLOTS)} at a time",
    f"If {word(fair_slots.MAX_WAITING_PER_VISITOR + 1)} such builds of one visitor are running or waiting",
    f"{admission._INVALID_TOKENS_PER_MINUTE} per minute and {admission._INVALID_TOKENS_PER_MINUTE // 2} in one burst",
    f"once in {word(admission._REJECTED_TOKEN_TTL_S / 60)} minutes",
    f"again every {word(REVOKED_S)} seconds",
    f"up to {head_proxy._MAX_RESPONSE_BYTES >> 30} GiB",
    f"silent for {head_proxy._READ_TIMEOUT_S:.0f} seconds",
]


@pytest.mark.parametrize(
    ("page", "limits"),
    [("explanation/security.md", SECURITY), ("explanation/reliability.md", RELIABILITY), ("how-to/access.md", ACCESS)],
)
def test_stated_limits_are_those_of_the_code(page: str, limits: list[str]) -> None:
    text = " ".join((DOCS / page).read_text().split())
    assert [limit for limit in limits if limit not in text] == []
