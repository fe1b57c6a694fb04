"""The shape of a diagnosis and its codes, on which programs rely."""

import msgspec

from rayhistory.diagnosis.findings import Counts, Diagnosis, Evidence, Finding, SkippedRule, Verdict
from rayhistory.diagnosis.rules.registry import FAILURE_RULES, SESSION_RULES

CODES = (
    "user_exception", "driver_exception", "driver_killed", "job_stopped", "task_cancelled", "worker_oom_killed",
    "container_oom_killed", "worker_segfault", "worker_aborted", "worker_exited", "worker_killed",
    "actor_init_failed", "actor_crash_loop", "node_lost", "node_preempted", "head_lost", "runtime_env_failed",
    "worker_startup_failed", "infeasible_request", "pending_for_capacity", "object_lost", "object_store_full",
    "out_of_disk", "serialization_failed", "module_not_found", "cuda_out_of_memory", "cuda_error", "nccl_timeout",
    "unexplained", "stragglers", "slow_node", "hung_task", "serial_driver", "tiny_tasks", "waiting_for_resources",
    "waiting_for_arguments", "object_spilling", "idle_resources", "slow_startup", "wasted_retries",
    "driver_not_exporting", "events_missing", "metrics_missing",
)  # fmt: skip


def test_every_code_has_a_rule() -> None:
    rules = [rule.code for rule in FAILURE_RULES] + [rule.code for rule in SESSION_RULES]
    assert len(rules) == len(set(rules))
    assert set(rules) == set(CODES)


def test_fields_of_the_api_are_kept() -> None:
    found = Diagnosis(
        verdict=Verdict(code="c", headline="h", confidence="certain", finding=0),
        findings=[Finding(code="c", severity="info", headline="h", counts=Counts(), evidence=[Evidence(kind="job")])],
        skipped=[SkippedRule("c", "r")],
    )
    body = msgspec.to_builtins(found)
    assert body["version"] == 1
    assert body["verdict"].keys() == {"code", "headline", "confidence", "finding"}
    assert body["findings"][0].keys() >= {
        "code", "severity", "headline", "detail", "confidence", "root", "first_ms", "last_ms", "counts", "evidence",
        "suggestion", "fingerprint", "consequences",
    }  # fmt: skip
    assert body["findings"][0]["counts"].keys() == {"tasks", "actors", "workers", "nodes", "jobs"}
    assert body["findings"][0]["evidence"][0].keys() == {"kind", "id", "text", "at_ms", "url"}
    assert body["skipped"] == [{"code": "c", "reason": "r"}]
