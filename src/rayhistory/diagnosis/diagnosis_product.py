"""The diagnosis as a product of a session's index: built after the tables, and rebuilt when rules change."""

import msgspec

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.gather import gather_facts, session_state
from rayhistory.diagnosis.node_samples import node_samples
from rayhistory.diagnosis.session_facts import NodeSamples
from rayhistory.errors import UsageError
from rayhistory.index.products.product import BuiltProduct, ProductContext
from rayhistory.index.query.database import set_limits
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.logs.source import CombinedLogs, LogSource, PackLogs, object_logs
from rayhistory.metrics.metrics_reader import MetricsReader
from rayhistory.metrics.object_listing import MetricQuery

NAME = "diagnosis"
FILE = "diagnosis.json"
RULES_VERSION = 20
"""Incremented when a rule or its texts change, so that stored diagnoses are rebuilt."""


_DATABASE_SHARE = 0.75
"""Share of `--index-memory` for the database. One thread reads 2,048 messages at a time: 740 MB if each has 100 kB."""


class DiagnosisProduct:
    """Builds `diagnosis.json`. The preview has the verdict, for lists of sessions."""

    name = NAME
    version = RULES_VERSION

    def build(self, context: ProductContext) -> BuiltProduct:
        set_limits(int(context.settings.index_memory * _DATABASE_SHARE), threads=1)
        found: Diagnosis = context.run(diagnose_session(context))
        path = context.scratch / FILE
        path.write_bytes(msgspec.json.encode(found))
        return BuiltProduct({FILE: path}, preview_of(found))


def preview_of(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the preview of a diagnosis: the values that lists of sessions show."""
    verdict = diagnosis.verdict
    return {"code": verdict.code, "headline": verdict.headline, "confidence": verdict.confidence} if verdict else {}


async def diagnose_session(context: ProductContext) -> Diagnosis:
    """Diagnose the session for which a build runs."""
    store, layout, ref = context.store, context.layout, context.ref
    context.report(0.1, "reading failures, logs and metrics")
    logs = CombinedLogs(*object_logs(store, layout, ref), PackLogs(store, layout, ref))
    return await diagnose_index(context.index, logs, await read_samples(context))


async def read_samples(context: ProductContext) -> dict[str, NodeSamples]:
    """Return the samples of all nodes; none if there are too many."""
    try:
        stored = await MetricsReader(context.store, context.layout).read(context.ref, MetricQuery())
    except UsageError:  # more samples than can be read at once
        return {}
    return node_samples(stored.samples)


async def diagnose_index(
    index: OpenIndex, logs: LogSource | None, samples: dict[str, NodeSamples], *, provisional: bool = False
) -> Diagnosis:
    """Diagnose the session of an open index."""
    facts = await gather_facts(index, logs, samples, session_state(index))
    return diagnose(facts, provisional=provisional)


PRODUCT = DiagnosisProduct()
