"""The differences between a live cluster and its history that are meant to be, each with its reason."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from recorded.compare import ABSENT, Difference

_OPEN_ACTOR = {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING"}
_CLOSED_TASK = {"FINISHED", "FAILED"}
_AT_THE_END = re.compile(r"The session ended (at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )?before Ray reported an end\.")


class Accepted(msgspec.Struct, frozen=True):
    where: str
    """Of which questions, as a pattern of how they begin."""
    field: str
    """Whose own path ends so, as a pattern."""
    allows: Callable[[Difference], bool]
    reason: str

    def explains(self, difference: Difference) -> bool:
        return (
            re.match(self.where, difference.question) is not None
            and re.search(rf"(^|[.])({self.field})$", difference.path) is not None
            and self.allows(difference)
        )


def explanation(difference: Difference) -> Accepted | None:
    return next((accepted for accepted in ACCEPTED if accepted.explains(difference)), None)


def _anything(difference: Difference) -> bool:
    return True


def _is_open(state: Any) -> bool:
    if isinstance(state, str):
        return state not in _CLOSED_TASK | {"DEAD", "SUCCEEDED", "STOPPED"}
    return state is True


def _closed(ending: Callable[[Any, Any], bool]) -> Callable[[Difference], bool]:
    """For what belongs to something that was open: the new value is an end."""
    return lambda difference: _is_open(difference.before()) and ending(difference.live, difference.dead)


def _becomes(*states: str) -> Callable[[Difference], bool]:
    return lambda difference: _is_open(difference.live) and difference.dead in states


def _nothing(value: Any) -> bool:
    return value in (None, 0, "-", ABSENT)


def _end_time(live: Any, dead: Any) -> bool:
    return _nothing(live) and isinstance(dead, int | float) and dead > 1.6e12


def _text_of_the_end(live: Any, dead: Any) -> bool:
    return _nothing(live) and isinstance(dead, str) and _AT_THE_END.fullmatch(dead) is not None


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


def _tried_again(difference: Difference, node: str) -> bool:
    """Whether below this node of a tree there is a task of several attempts."""
    answer = difference.answer
    return any(
        path.startswith(f"{node}.") and path.endswith(".state_counts") and sum(counts.values()) > 1
        for path, counts in answer.items()
        if answer.get(path.removesuffix("state_counts") + "children") == []
    )


def _order_of_those_tried_once(difference: Difference) -> bool:
    parent = difference.path.rpartition(".")[0]
    if not _same_names(difference):
        return False
    again = {name for name in difference.live if _tried_again(difference, f"{parent}.{name.replace('.', '·')}")}
    live, dead = ([name for name in names if name not in again] for names in (difference.live, difference.dead))
    return live == dead


def _grew(difference: Difference) -> bool:
    return bool(difference.live == ABSENT)


def _same_without_time(difference: Difference) -> bool:
    live, dead = (re.sub(r"(?<=status: )[-\d:. ]+", "", text) for text in (difference.live, difference.dead))
    return live == dead


def _something_was_open(difference: Difference) -> bool:
    counts = [value for path, value in difference.answer.items() if path.endswith(".state_counts")]
    return _same_names(difference) and any(_is_open(state) for count in counts for state in count)


def _less_than(most: float) -> Callable[[Difference], bool]:
    def holds(difference: Difference) -> bool:
        live, dead = difference.live, difference.dead
        return isinstance(live, int | float) and isinstance(dead, int | float) and abs(live - dead) <= most

    return holds


def _goes_on(difference: Difference) -> bool:
    return isinstance(difference.dead, str) and difference.dead.startswith(str(difference.live))


def _both_refuse(difference: Difference) -> bool:
    return difference.answer[".status code"] == 500 and isinstance(difference.dead, str) and bool(difference.dead)


def _without_empty_folders(difference: Difference) -> bool:
    live, dead = difference.live, difference.dead
    if isinstance(live, tuple) and isinstance(dead, tuple):
        return set(dead) == {name for name in live if name in dead or not name.endswith("/")}
    return str(live).endswith("/") and dead == ABSENT


def _same_json(difference: Difference) -> bool:
    return bool(msgspec.json.decode(difference.live) == msgspec.json.decode(difference.dead))


def _same_letters(difference: Difference) -> bool:
    return sorted(str(difference.live)) == sorted(str(difference.dead))


_ACTORS, _NODES, _JOBS = "/logical/actors|/nodes/", "/nodes", "/api/(v0/)?jobs"
_STATISTICS = (
    "mem|processStats|numExecutedTasks|numPendingTasks|numRunningTasks|numObjectRefsInScope|numInPlasma|numLocalObjects|"
    "usedObjectStoreMemory|usedResources|taskQueueLength|objectRefs|objectsTotal|numOwnedObjects|numOwnedActors|"
    "numInFlightArgPinningRequests|numOfFailedArgPinningRequests|language|workerType|ipAddress|port|workerId"
)
_MEASURED = (
    "now|cpu|cpus|mem|hostMem|cgroupMem|shm|loadAvg|disk|diskIo|diskIoSpeed|network|networkSpeed|agent|workers|"
    "raylet.coreWorkersStats|raylet.storeStats|raylet.numWorkers|raylet.objectStore(Used|Available)Memory|"
    "raylet.memoryInfo|raylet.cpuTimes|raylet.cpuPercent|raylet.numFds|raylet.stateSnapshot|gcs|logCount|errorCount"
)

ACCEPTED = (
    Accepted("/api/v0/tasks", "state", _becomes("FAILED"), "a task that was open is closed at the session's end"),
    Accepted("/api/v0/tasks", "error_type", _closed(lambda live, dead: dead == "NODE_DIED"), "why it was closed"),
    Accepted("/api/v0/tasks", "error_message", _closed(_text_of_the_end), "why it was closed"),
    Accepted("/api/v0/tasks", "end_time_ms", _closed(_end_time), "when it was closed"),
    Accepted("/api/v0/tasks", "events[.]FAILED[.](state|created_ms)", _closed(lambda live, dead: live == ABSENT),
             "its end is one event more"),
    Accepted("/api/v0/tasks", "events[.]order", _closed(lambda live, dead: dead == (*live, "FAILED")),
             "its end is one event more"),
    Accepted("/api/v0/", "state_counts", _counted_as_ended, "tasks and actors that were open count as failed and dead"),
    Accepted("/api/v0/tasks/summarize", "(summary|children)[.]order", _something_was_open,
             "Ray puts what is running first, and nothing is"),
    Accepted("/api/v0/tasks", "(created|creation_time|start_time|end_time)(_ms)?", _less_than(1),
             "Ray rounds nanoseconds in floating point; once in some thousand times that is another millisecond"),
    Accepted("/api/v0/tasks", "result[.]order|spans[.]order", _attempts_in_any_order,
             "in which order Ray has the attempts of one task is chance; the history begins with the last"),
    Accepted("/api/v0/tasks/summarize", "timestamp", lambda it: _tried_again(it, it.path.rpartition(".")[0]),
             "and so is which attempt's time a tree shows"),
    Accepted("/api/v0/tasks/summarize", "(summary|children)[.]order", _order_of_those_tried_once,
             "and where it puts the task"),
    Accepted("/api/v0/tasks", "f{40}01000000#0[.]profiling_data[.]events[.].+", _grew,
             "the driver is the dashboard itself, which went on"),
    Accepted("/api/v0/tasks/timeline", "ts|dur", _less_than(1),
             "Ray rounds to a quarter of a microsecond by computing in milliseconds; the history does not"),
    Accepted("/api/v0/actors", "state", _becomes("DEAD"), "an actor that was open is closed at the session's end"),
    Accepted(_ACTORS, "state", _becomes("DEAD"), "an actor that was open is closed at the session's end"),
    Accepted(_ACTORS, "endTime", _closed(_end_time), "when it was closed"),
    Accepted(_ACTORS, "timestamp", _closed(lambda live, dead: dead > live), "when it was closed"),
    Accepted(_ACTORS, "exitDetail", _closed(_text_of_the_end), "why it was closed"),
    Accepted(_ACTORS, f"({_STATISTICS})([.].+)?", _anything,
             "measured by the dashboard now and then; the history has the last of each, and always the worker's id"),
    Accepted("/api/v0/workers", "is_alive", lambda it: it.live is True and it.dead is False, "all processes are gone"),
    Accepted("/api/v0/workers", "exit_detail", _closed(_text_of_the_end), "why it was closed"),
    Accepted("/api/v0/workers", "end_time_ms", _closed(_end_time), "when it was closed"),
    Accepted("/api/v0/nodes", "state", _becomes("DEAD"), "the node is gone"),
    Accepted("/api/v0/nodes", "state_message", _closed(_text_of_the_end), "why it was closed"),
    Accepted("/api/v0/nodes", "end_time_ms", _closed(_end_time), "when it was closed"),
    Accepted(_JOBS, "status", _becomes("STOPPED"), "a job that was running is stopped by its cluster's end"),
    Accepted(_JOBS, "message", _closed(lambda live, dead: _AT_THE_END.fullmatch(dead) is not None), "why it stopped"),
    Accepted(_JOBS, "end_time", _closed(_end_time), "when it was stopped"),
    Accepted("/api/jobs/", "order", _same_names, "Ray lists submissions in no order; pages sort them by their start"),
    Accepted("/api/jobs/running-job/logs", "logs", _goes_on, "the job wrote on after it was asked"),
    Accepted(_NODES, f"[0-9a-f]{{56}}[.]({_MEASURED})([.].+)?", _anything, "measured anew every few seconds"),
    Accepted(_NODES, f"data[.]detail[.]({_MEASURED})([.].+)?", _anything, "measured anew every few seconds"),
    Accepted("/api/cluster_status", "clusterStatus", _same_without_time, "its heading has the time of the last look"),
    Accepted("/events", "order", _same_names, "Ray's times are whole seconds: within one, there is no order"),
    Accepted(r"/api/v0/logs\?", "order", _without_empty_folders,
             "Ray lists files as the file system does; pages sort them"),
    Accepted(r"/api/v0/logs\?", ".*/", _without_empty_folders, "a store has no empty folders"),
    Accepted(r"/api/v0/logs/file\?node_id", "text", _goes_on, "Ray wrote on after it was asked"),
    Accepted(r"/api/v0/logs/file\?actor_id", "text", _goes_on, "the actor wrote on after it was asked"),
    Accepted("/api/v0/logs/file", "text", _both_refuse, "refused by both, in other words: the directories are gone"),
    Accepted("/api/v0/", "serialized_runtime_env", _same_json, "the same JSON, without spaces"),
    Accepted(r"/api/v0/tasks\?limit=10001", ".*", _anything, "a history has no limit of 10,000 rows"),
    Accepted(r"/api/v0/tasks\?detail=1&filter_keys=color", "msg", _same_letters, "Ray's list of columns has no order"),
    Accepted("/api/profiling_enabled", "data[.]profilingDefaults([.].+)?", _anything, "there is nothing to profile"),
    Accepted("/api/grafana_health", ".*", _anything, "there is no Grafana: the pages leave their charts out"),
    Accepted("/api/prometheus_health", ".*", _anything, "there is no Prometheus: the pages leave their charts out"),
)  # fmt: skip
