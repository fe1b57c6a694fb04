"""Expected differences between a live cluster and its history, each with its reason."""

import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from rayhistory.ray_env import Version
from recorded.compare import ABSENT, Difference, Fields
from recorded.dashboard_requests import UNKNOWN_ID

_OPEN_ACTOR = {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING"}
_CLOSED_TASK = {"FINISHED", "FAILED"}
_PROCESSES = re.compile("workers|coreWorkersStats|processStats|cmdline")
_IDENTITY = re.compile(r"(workerId|workerType|language|ipAddress|ip|port|pid|jobId|actorId|nodeId|createTime)$")
_NO_JOB = "ffff"
_WORKER_ROW = re.compile(r".*coreWorkers?Stats[.][^.]+(?=[.])")
_FLOORS = {"Speed": 1e10, "(?i)objectStore|storeStats|shm|memoryInfo": 1e9, "": 1e4}
"""Bounds of measurements by path: speeds and small numbers change by any factor."""
_AT_THE_END = re.compile(r"The session ended (at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )?before Ray reported an end\.")


class Kind(StrEnum):
    """Why a difference says nothing about the history, or that it does."""

    MEASURED = "measured"
    """A statistic that changes with every request to the live cluster."""
    LATER = "later"
    """The cluster went on after the request, and ended: what was open then is closed in the history."""
    CRASHED = "crashed"
    """Ray's code raised an exception instead of a response, so the live cluster says nothing about this request."""
    OTHER = "other"


class Expected(msgspec.Struct, frozen=True):
    request: str
    """Pattern for the beginning of the request."""
    field: str
    """Pattern for the end of the field's path."""
    allows: Callable[[Difference], bool]
    reason: str
    before: Version = (9999, 0)
    """Applies only to versions of Ray before this one."""
    kind: Kind = Kind.OTHER

    def explains(self, difference: Difference, version: Version) -> bool:
        return (
            version < self.before
            and re.match(self.request, difference.request) is not None
            and re.search(rf"(^|[.])({self.field})$", difference.path) is not None
            and self.allows(difference)
        )


def explanation(difference: Difference, version: Version) -> Expected | None:
    return next((expected for expected in EXPECTED_DIFFERENCES if expected.explains(difference, version)), None)


def _anything(difference: Difference) -> bool:
    return True


def _sampled(difference: Difference) -> bool:
    """Allow another measurement within bounds, and processes that only one sample has; never another identity."""
    live, dead, path = difference.live, difference.dead, difference.path
    if live is ABSENT:
        return not _replaces_a_worker(difference)
    if dead is ABSENT:
        return _PROCESSES.search(path) is not None
    if path.endswith(".order"):
        return isinstance(live, tuple) and isinstance(dead, tuple)
    if _IDENTITY.search(path):
        return path.endswith(".jobId") and live == _NO_JOB  # a worker gets its job with its first task
    return _is_within_bounds(path, live, dead)


def _sampled_of_actor(difference: Difference) -> bool:
    """Allow what `_sampled` allows, statistics that the last sample does not have, and the id that a live one lacks."""
    if difference.path.endswith(".workerId") and difference.live is ABSENT:
        parent = difference.path.removesuffix(".workerId")
        return bool(difference.dead == difference.dead_fields.get(f"{parent}.address.workerId", difference.dead))
    return difference.dead is ABSENT or _sampled(difference)


def _replaces_a_worker(difference: Difference) -> bool:
    """Return whether a worker that only the history has is a process that the live cluster had under another id."""
    row = _WORKER_ROW.match(difference.path)
    pid = difference.dead_fields.get(f"{row[0]}.pid") if row else None
    pids = {
        value for path, value in difference.live_fields.items() if re.search(r"coreWorkers?Stats[.][^.]+[.]pid$", path)
    }
    return pid is not None and pid in pids


def _is_within_bounds(path: str, live: Any, dead: Any) -> bool:
    """Compare measurements by their order of magnitude; below the floor of their kind they may be anything positive."""
    try:
        before, after = float(live or 0), float(dead or 0)
    except (TypeError, ValueError):
        return False
    floor = next(floor for pattern, floor in _FLOORS.items() if re.search(pattern, path))
    return 0 <= after <= 8 * max(before, floor) and before <= 8 * max(after, floor)


def _was_unmeasured(difference: Difference) -> bool:
    return difference.live == 0 and isinstance(difference.dead, int | float) and difference.dead >= 0


def _is_open(state: Any) -> bool:
    if isinstance(state, str):
        return state not in _CLOSED_TASK | {"DEAD", "SUCCEEDED", "STOPPED"}
    return state is True


def _closed(ending: Callable[[Any, Any], bool]) -> Callable[[Difference], bool]:
    """Allow a new value in a row that was open, if it is one of an end."""
    return lambda difference: _is_open(difference.live_state()) and ending(difference.live, difference.dead)


def _becomes(*states: str) -> Callable[[Difference], bool]:
    return lambda difference: _is_open(difference.live) and difference.dead in states


def _nothing(value: Any) -> bool:
    return value in (None, 0, "-", ABSENT)


def _end_time(live: Any, dead: Any) -> bool:
    return _nothing(live) and isinstance(dead, int | float) and dead > 1.6e12


def _text_of_the_end(live: Any, dead: Any) -> bool:
    return _nothing(live) and isinstance(dead, str) and _AT_THE_END.fullmatch(dead) is not None


def _had_no_id(difference: Difference) -> bool:
    return difference.live == "f" * 32 and str(difference.dead) in f"{difference.request} {difference.path}"


def _counted_as_ended(difference: Difference) -> bool:
    live, dead = difference.live, difference.dead
    if not (isinstance(live, dict) and isinstance(dead, dict)):
        return False
    end = "DEAD" if set(live) & (_OPEN_ACTOR | {"DEAD"}) else "FAILED"
    closed: Counter[str] = Counter()
    for state, count in live.items():
        closed[end if _is_open(state) else state] += count
    return dict(closed) == dead


def _same_names(difference: Difference) -> bool:
    return (
        isinstance(difference.live, tuple)
        and isinstance(difference.dead, tuple)
        and sorted(difference.live) == sorted(difference.dead)
    )


def _attempts_in_any_order(difference: Difference) -> bool:
    live, dead = difference.live, difference.dead
    return _same_names(difference) and [_task(name) for name in live] == [_task(name) for name in dead]


def _task(attempt: str) -> str:
    return attempt.partition("#")[0]


def _retried(difference: Difference, node: str) -> bool:
    """Return whether the tree has a task of several attempts below this node."""
    fields = difference.live_fields
    return any(
        path.startswith(f"{node}.") and path.endswith(".state_counts") and sum(counts.values()) > 1
        for path, counts in fields.items()
        if fields.get(path.removesuffix("state_counts") + "children") == []
    )


def _order_without_retried(difference: Difference) -> bool:
    parent = difference.path.rpartition(".")[0]
    if not _same_names(difference):
        return False
    retried = {name for name in difference.live if _retried(difference, f"{parent}.{name.replace('.', '·')}")}
    live, dead = ([name for name in names if name not in retried] for names in (difference.live, difference.dead))
    return live == dead


def _grew(difference: Difference) -> bool:
    return bool(difference.live == ABSENT)


def _came_later(difference: Difference) -> bool:
    """Allow an event that is not older than the newest of the live cluster."""
    latest = max(_times(difference.live_fields).values())
    later = {event for event, time in _times(difference.dead_fields).items() if time >= latest}
    if difference.live == ABSENT:
        return difference.path.rpartition(".")[0] in later
    earlier = {name for name in difference.dead if f"{difference.path.removesuffix('order')}{name}" not in later}
    return earlier <= set(difference.live) <= set(difference.dead)


def _times(fields: Fields) -> dict[str, int]:
    ends = ".timestamp"
    return {path.removesuffix(ends): int(value) for path, value in fields.items() if path.endswith(ends)}


def _same_without_time(difference: Difference) -> bool:
    texts = (re.sub(r"(?<=status: )[-\d:. ]+", "", text) for text in (difference.live, difference.dead))
    live, dead = (sorted(text.splitlines()) for text in texts)
    return live == dead


def _something_was_open(difference: Difference) -> bool:
    counts = [value for path, value in difference.live_fields.items() if path.endswith(".state_counts")]
    return _same_names(difference) and any(_is_open(state) for count in counts for state in count)


def _within(tolerance: float) -> Callable[[Difference], bool]:
    def holds(difference: Difference) -> bool:
        live, dead = difference.live, difference.dead
        return isinstance(live, int | float) and isinstance(dead, int | float) and abs(live - dead) <= tolerance

    return holds


def _continues(difference: Difference) -> bool:
    return isinstance(difference.dead, str) and difference.dead.startswith(str(difference.live))


def _both_refuse(difference: Difference) -> bool:
    statuses = (fields[".status code"] for fields in (difference.live_fields, difference.dead_fields))
    return all(status == 500 for status in statuses) and isinstance(difference.dead, str) and bool(difference.dead)


def _without_empty_folders(difference: Difference) -> bool:
    live, dead = difference.live, difference.dead
    if isinstance(live, tuple) and isinstance(dead, tuple):
        return set(dead) == {name for name in live if name in dead or not name.endswith("/")}
    return str(live).endswith("/") and dead == ABSENT


def _is_later(earlier: Any, later: Any) -> bool:
    return isinstance(earlier, int | float) and isinstance(later, int | float) and later > earlier


def _later(difference: Difference) -> bool:
    return _is_later(difference.dead, difference.live)


def _one_worker_for_two_starts(difference: Difference) -> bool:
    """Allow another worker of a span only where Ray shows the same worker for each start of the actor."""
    span = difference.path.rpartition("#")[0]
    workers = [
        worker for path, worker in difference.live_fields.items() if re.fullmatch(rf"{re.escape(span)}#\d+[.]tid", path)
    ]
    return len(workers) > 1 and set(workers) == {difference.live}


def _crashed_on_empty_output(difference: Difference) -> bool:
    """Allow an empty response where the web server of the dashboard reports that Ray's code raised an exception.

    Until 2.57 it raises for every empty output, because it ends a response that it has not begun.
    """
    live = difference.live_fields
    return (
        live[".status code"] == 500 and "Server got itself in trouble" in live[".text"] and difference.dead in (200, "")
    )


def _ray_lost_the_place(difference: Difference) -> bool:
    """Allow a place of the output where the live cluster has none."""
    row = difference.path.partition(".task_log_info")[0]
    return difference.live_fields.get(f"{row}.task_log_info", ABSENT) is None


def _ray_lost_the_file(difference: Difference) -> bool:
    lost = difference.live_fields[".text"].startswith("Could not find log file for task attempt")
    return lost and bool(difference.dead_fields[".status code"] == 200)


def _end_of_output(difference: Difference) -> bool:
    """Allow an end where the live cluster has only the start, which means the end of the file."""
    start = difference.live_fields.get(difference.path.removesuffix("_end") + "_start")
    return difference.live is ABSENT and isinstance(start, int) and difference.dead >= start


def _without_repr(difference: Difference) -> bool:
    """Allow `Watcher.watch` in place of `Watcher(of=shards).watch`."""
    return bool(re.sub(r"[(].*[)]", "", str(difference.live)) == difference.dead)


def _hidden(difference: Difference) -> bool:
    return "<redacted>" in str(difference.dead)


def _no_such_page(difference: Difference) -> bool:
    return bool(difference.live_fields[".status code"] == 404)


def _words(live: str, dead: str) -> Callable[[Difference], bool]:
    """Allow words that match `dead` in place of words that match `live`, in a table or a message."""
    return lambda difference: all(
        re.fullmatch(pattern, words) for pattern, words in ((live, difference.live), (dead, difference.dead))
    )


def _ray_raised(difference: Difference) -> bool:
    return ".raised" in difference.live_fields or "Failed to make request" in str(difference.live_fields.get(".text"))


def _of_no_rows(difference: Difference) -> bool:
    return difference.live_fields.get(".data.result.total") == 0


def _same_letters(difference: Difference) -> bool:
    return sorted(str(difference.live)) == sorted(str(difference.dead))


_END = r"The session ended at \S+ before Ray reported an end\."
_ACTORS, _NODES, _JOBS = "/logical/actors|/nodes/", "/nodes", "/api/(v0/)?jobs"
_STATISTICS = (
    "mem|processStats|numExecutedTasks|numPendingTasks|numRunningTasks|numObjectRefsInScope|numInPlasma|numLocalObjects|"
    "usedObjectStoreMemory|usedResources|taskQueueLength|objectRefs|objectsTotal|numOwnedObjects|numOwnedActors|"
    "numInFlightArgPinningRequests|webuiDisplay|numOfFailedArgPinningRequests|language|workerType|ipAddress|port|workerId"
)
_DRIVER = "f{40}[0-9a-f]{8}#0"
"""The task of a driver, attempt 0."""
_NOT_EVERYWHERE = "no-such-file|gcs_server[.]out|event_JOBS[.]log"
"""Files that some nodes do not have, and that are never empty elsewhere."""
_MEASURED = (
    "now|cpu|cpus|mem|hostMem|cgroupMem|shm|loadAvg|disk|diskIo|diskIoSpeed|network|networkSpeed|agent|workers|"
    "raylet.coreWorkersStats|raylet.storeStats|raylet.numWorkers|raylet.objectStore(Used|Available)Memory|"
    "raylet.memoryInfo|raylet.cpuTimes|raylet.cpuPercent|raylet.numFds|raylet.stateSnapshot|gcs|logCount|errorCount"
)

EXPECTED_DIFFERENCES = (
    Expected("/api/v0/tasks", "state", _becomes("FAILED"), "an open task is closed at the session's end",
             kind=Kind.LATER),
    Expected("/api/v0/tasks", "error_type", _closed(lambda live, dead: dead == "NODE_DIED"),
             "the reason of its inferred end", kind=Kind.LATER),
    Expected("/api/v0/tasks", "error_message", _closed(_text_of_the_end), "the reason of its inferred end",
             kind=Kind.LATER),
    Expected("/api/v0/tasks", "end_time_ms", _closed(_end_time), "the time of its inferred end", kind=Kind.LATER),
    Expected("/api/v0/tasks", "events[.]FAILED[.](state|created_ms)", _closed(lambda live, dead: live == ABSENT),
             "the inferred end adds an event", kind=Kind.LATER),
    Expected("/api/v0/tasks", "events[.]order", _closed(lambda live, dead: dead == (*live, "FAILED")),
             "the inferred end adds an event", kind=Kind.LATER),
    Expected("/api/v0/tasks", f"{_DRIVER}[.]state", _becomes("FINISHED"),
             "an open driver ends; its job has the outcome", kind=Kind.LATER),
    Expected("/api/v0/tasks", f"{_DRIVER}[.]events[.]FINISHED[.](state|created_ms)",
             _closed(lambda live, dead: live == ABSENT), "the inferred end adds an event", kind=Kind.LATER),
    Expected("/api/v0/tasks", f"{_DRIVER}[.]events[.]order", _closed(lambda live, dead: dead == (*live, "FINISHED")),
             "the inferred end adds an event", kind=Kind.LATER),
    Expected("/api/v0/", "state_counts", _counted_as_ended, "open tasks and actors count as failed and dead",
             kind=Kind.LATER),
    Expected("/api/v0/tasks/summarize", "(summary|children)[.]order", _something_was_open,
             "Ray lists running tasks first, and none is running", kind=Kind.LATER),
    Expected("/api/v0/tasks", "(created|creation_time|start_time|end_time)(_ms)?", _within(1),
             "Ray rounds nanoseconds in floating point, which is rarely another millisecond"),
    Expected("/api/v0/tasks", "result[.]order|spans[.]order", _attempts_in_any_order,
             "Ray lists the attempts of a task in any order, the history from the last"),
    Expected("/api/v0/tasks/summarize", "timestamp", lambda it: _retried(it, it.path.rpartition(".")[0]),
             "the lineage shows the time of any attempt"),
    Expected("/api/v0/tasks/summarize", "(summary|children)[.]order", _order_without_retried,
             "the lineage places a retried task by the time of any attempt"),
    Expected("/api/v0/tasks", "f{40}0[13]000000#0[.]profiling_data[.]events[.].+", _grew,
             "the driver is the dashboard itself, which kept running", kind=Kind.LATER),
    Expected("/api/v0/actors", "state", _becomes("DEAD"), "an open actor is closed at the session's end",
             kind=Kind.LATER),
    Expected(_ACTORS, "state", _becomes("DEAD"), "an open actor is closed at the session's end", kind=Kind.LATER),
    Expected(_ACTORS, "endTime", _closed(_end_time), "the time of its inferred end", kind=Kind.LATER),
    Expected(_ACTORS, "timestamp", _closed(_is_later), "the time of its inferred end", kind=Kind.LATER),
    Expected(_ACTORS, "exitDetail", _closed(_text_of_the_end), "the reason of its inferred end", kind=Kind.LATER),
    Expected(_ACTORS, f"({_STATISTICS})([.].+)?", _sampled_of_actor,
             "sampled by the dashboard; the history has the last sample, and always the worker's id",
             kind=Kind.MEASURED),
    Expected("/api/v0/workers", "is_alive", lambda it: it.live is True and it.dead is False, "all processes are gone",
             kind=Kind.LATER),
    Expected("/api/v0/workers", "exit_detail", _closed(_text_of_the_end), "the reason of its inferred end",
             kind=Kind.LATER),
    Expected("/api/v0/workers", "end_time_ms", _closed(_end_time), "the time of its inferred end", kind=Kind.LATER),
    Expected("/api/v0/nodes", "state", _becomes("DEAD"), "the node is gone", kind=Kind.LATER),
    Expected("/api/v0/nodes", "state_message", _closed(_text_of_the_end), "the reason of its inferred end",
             kind=Kind.LATER),
    Expected("/api/v0/nodes", "end_time_ms", _closed(_end_time), "the time of its inferred end", kind=Kind.LATER),
    Expected(_JOBS, "status", _becomes("STOPPED"), "a running job is stopped by its cluster's end", kind=Kind.LATER),
    Expected(_JOBS, "message", _closed(lambda live, dead: bool(_AT_THE_END.fullmatch(str(dead)))),
             "the reason of its inferred end", kind=Kind.LATER),
    Expected(_JOBS, "end_time", _closed(_end_time), "the time of its inferred end", kind=Kind.LATER),
    Expected("/api/jobs/", "order", _same_names, "Ray lists submissions in any order, and pages sort them by start"),
    Expected("/api/jobs/(running|serving)-job/logs", "logs", _continues, "the job kept writing after the request",
             kind=Kind.LATER),
    Expected(_NODES, f"[0-9a-f]{{56}}[.]({_MEASURED})([.].+)?", _sampled, "sampled every few seconds",
             kind=Kind.MEASURED),
    Expected(_NODES, f"data[.]detail[.]({_MEASURED})([.].+)?", _sampled, "sampled every few seconds",
             kind=Kind.MEASURED),
    Expected(f"/nodes/{UNKNOWN_ID}", "data[.]detail[.].+", _grew, "Ray's page of a missing node is blank"),
    Expected("/api/cluster_status", "clusterStatus", _same_without_time,
             "its heading has the time of the request, and demands are in any order"),
    Expected("/events", "order", _same_names,
             "Ray's times are whole seconds, and events of one second are in any order"),
    Expected("/events", ".*", _came_later, "the autoscaler kept reporting after the request", kind=Kind.LATER),
    Expected(r"/api/v0/logs\?", "order", _without_empty_folders,
             "Ray lists files in the order of the file system, and pages sort them"),
    Expected(r"/api/v0/logs\?", ".*/", _without_empty_folders, "a store has no empty folders"),
    Expected(r"/api/v0/logs/file\?node_id", "text", _continues, "Ray kept writing after the request", kind=Kind.LATER),
    Expected(r"/api/v0/logs/file\?actor_id", "text", _continues, "the actor kept writing after the request",
             kind=Kind.LATER),
    Expected(f"/api/v0/logs/file.*({_NOT_EVERYWHERE})", "status code",
             lambda it: (it.live_fields[".text"], it.dead) == ("", 500),
             "Ray may close the connection before it reports a missing file"),
    Expected("/api/v0/logs/file", "text", _both_refuse,
             "both refuse, with different text, because the directories are gone"),
    Expected(r"/api/v0/tasks\?limit=10001", ".*", _anything, "the history server has no limit of 10,000 rows"),
    Expected(r"/api/v0/tasks\?detail=1&filter_keys=color", "msg", _same_letters, "Ray lists columns in any order"),
    Expected(r"/api/v0/tasks\?detail=1&filter_keys=color", ".*", _of_no_rows,
             "Ray checks filters only if there are rows"),
    Expected("/api/serve/", "controller_health_metrics([.].+)?", _anything, "sampled for every request",
             kind=Kind.MEASURED),
    Expected("/api/data/datasets/", r"ray_data_\w+[.](value|max)", _was_unmeasured,
             "the head had no Prometheus to ask, the history has stored metrics"),
    Expected("/api/profiling_enabled", "data[.]profilingDefaults([.].+)?", _anything, "there is nothing to profile"),
    Expected("/api/grafana_health", ".*", _anything, "there is no Grafana: the pages leave their charts out"),
    Expected("/api/prometheus_health", ".*", _anything, "there is no Prometheus: the pages leave their charts out"),
    # Output of Ray's own clients.
    Expected(".* by ", "words", _words(r"RUNNING|PENDING_\w+", "FAILED"), "an open task is closed", kind=Kind.LATER),
    Expected(".* by ", "words", _words("", "NODE_DIED"), "the reason of its inferred end", kind=Kind.LATER),
    Expected(".* by ", "words", _words("ALIVE|PENDING_CREATION", f"DEAD( {_END})?"), "an actor or a node is closed",
             kind=Kind.LATER),
    Expected("/api/v0/workers by ", "words", _words("True", "False"), "all processes are gone", kind=Kind.LATER),
    Expected(".* by ", "words", _words("RUNNING Job is currently running.", f"STOPPED {_END}"), "a job is stopped",
             kind=Kind.LATER),
    Expected("/api/jobs/ by ", "words", _words(".*RUNNING.*|INFO.*", ".*(STOPPED|stopped).*|WARN.*"),
             "a running job is stopped", kind=Kind.LATER),
    Expected("/api/jobs/ by ", "words", _words(".*Job is currently running.*", f".*({_END}.*)?"),
             "the reason of its inferred end", kind=Kind.LATER),
    Expected("/api/jobs/ by ", "words", _words("end_time=None,", r"end_time=\d+,"), "the time of its inferred end",
             kind=Kind.LATER),
    Expected("/api/jobs/ by ray job logs (running|serving)-job", "words", lambda it: not it.live,
             "the job kept writing", kind=Kind.LATER),
    Expected("/api/jobs/ by jobs", "status[.].*", _becomes("STOPPED"), "a running job is stopped", kind=Kind.LATER),
    Expected("/api/jobs/ by jobs", "logs[.](running|serving)-job", _continues,
             "the job kept writing after the request", kind=Kind.LATER),
    Expected("/api/v0/objects", ".*", _anything, "objects are known only while a cluster runs"),
    Expected("/api/v0/runtime_envs", ".*", _anything, "read from every node, and collected only on request"),
    Expected("/api/v0/cluster_events", ".*", _ray_raised, "Ray cannot list its own cluster events"),
    # Older versions of Ray.
    Expected("/api/v0/tasks", "task_log_info[.]std(out|err)_end", _end_of_output,
             "Ray lost the end of a worker's last output, and the history infers it", (2, 58)),
    Expected("/api/v0/tasks", "task_log_info([.]std(out|err)_(file|start|end))?", _ray_lost_the_place,
             "Ray lost the place of a worker's last output, and the history infers it", (2, 58)),
    Expected("/api/v0/logs/file.task_id", "status code|text", _ray_lost_the_file,
             "Ray lost the place of a worker's last output, and the history infers it", (2, 58)),
    Expected(_ACTORS, "actorId", _had_no_id, "Ray sometimes reports a change without the actor's id"),
    Expected("/api/profiling_enabled", ".*", _no_such_page, "not in this version of Ray", (2, 56)),
    Expected("/api/v0/runtime_env_redaction", ".*", _no_such_page, "not in this version of Ray", (2, 60)),
    Expected(".* in a browser", "serialized_runtime_env|env_vars[.].+", _hidden,
             "this version of Ray did not redact environment variables", (2, 60)),
    Expected("/api/v0/logs/file.task_id", "status code|text", _crashed_on_empty_output,
             "Ray raised an exception for a task without output", (2, 58), kind=Kind.CRASHED),
    Expected("/api/v0/tasks", "created_ms|(creation|start|end)_time_ms|timestamp", _later,
             "a restarted actor's tasks had the same ids again, and the history has the first times", (2, 55)),
    Expected("/api/v0/tasks/timeline", r"spans[.]f{16}[0-9a-f]{32}#\d+#.*[.]tid", _one_worker_for_two_starts,
             "a restarted actor's tasks had the same ids again, and Ray shows its last worker for each start", (2, 55)),
    Expected("/api/v0/tasks/summarize.*lineage", "(summary|children)[.]order", _same_names,
             "Ray misspelled the state by which it lists failed tasks first", (2, 55)),
    Expected("/api/v0/tasks", "name", _without_repr, "an actor's `__repr__` was not exported", (2, 54)),
    Expected("/api/v0/tasks by ", "words", _without_repr, "an actor's `__repr__` was not exported", (2, 54)),
)  # fmt: skip
