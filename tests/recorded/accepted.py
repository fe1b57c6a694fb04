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
    """Whose question's path begins so."""
    field: str
    """Whose own path ends so, as a pattern."""
    allows: Callable[[Difference], bool]
    reason: str

    def explains(self, difference: Difference) -> bool:
        return (
            difference.question.startswith(self.where)
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


def _without_empty_tail(difference: Difference) -> bool:
    live, dead = difference.live, difference.dead
    if difference.path.endswith(".order"):
        return [name for name in live if not name.isdigit()] == list(dead if dead != ABSENT else ())
    return bool(live == "" and dead == ABSENT)


def _same_json(difference: Difference) -> bool:
    return bool(msgspec.json.decode(difference.live) == msgspec.json.decode(difference.dead))


def _same_letters(difference: Difference) -> bool:
    return sorted(str(difference.live)) == sorted(str(difference.dead))


_TASKS, _ACTORS, _NODES = "/api/v0/tasks?", "/logical/actors", "/nodes"
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
    Accepted("/api/v0/tasks/timeline", "ts|dur", _less_than(0.6),
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
    Accepted("/api/", "status", _becomes("STOPPED"), "a job that was running is stopped by its cluster's end"),
    Accepted("/api/", "message", _closed(lambda live, dead: _AT_THE_END.fullmatch(dead) is not None), "why it stopped"),
    Accepted("/api/", "end_time", _closed(_end_time), "when it was stopped"),
    Accepted("/api/jobs/running-job/logs", "logs", _goes_on, "the job wrote on after it was asked"),
    Accepted(_NODES, f"[0-9a-f]{{56}}[.]({_MEASURED})([.].+)?", _anything, "measured anew every few seconds"),
    Accepted(_NODES, f"data[.]detail[.]({_MEASURED})([.].+)?", _anything, "measured anew every few seconds"),
    Accepted("/events", "order", _same_names, "Ray's times are whole seconds: within one, there is no order"),
    Accepted("/api/v0/logs?", "order", _same_names, "Ray lists files as the file system does; pages sort them"),
    Accepted("/api/v0/logs/file?node_id", "text", _goes_on, "Ray wrote on after it was asked"),
    Accepted("/api/v0/logs/file?actor_id", "text", _goes_on, "the actor wrote on after it was asked"),
    Accepted("/api/v0/logs/file", "text", _both_refuse, "refused by both, in other words: the directories are gone"),
    Accepted("/api/v0/", "serialized_runtime_env", _same_json, "the same JSON, without spaces"),
    Accepted("/api/v0/tasks?limit=10001", ".*", _anything, "a history has no limit of 10,000 rows"),
    Accepted("/api/v0/tasks?detail=1&filter_keys=color", "msg", _same_letters, "Ray's list of columns has no order"),
    Accepted("/api/profiling_enabled", "data[.]profilingDefaults([.].+)?", _anything, "there is nothing to profile"),
    Accepted("/api/grafana_health", ".*", _anything, "there is no Grafana: the pages leave their charts out"),
    Accepted("/api/prometheus_health", ".*", _anything, "there is no Prometheus: the pages leave their charts out"),
)  # fmt: skip
