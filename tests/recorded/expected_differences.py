"""The differences between a live cluster and its history that are meant to be, each with its reason."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rayhistory.rayenv import Version
from recorded.compare import ABSENT, Difference, Fields
from recorded.questions import NOBODY

_OPEN_ACTOR = {"DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING"}
_CLOSED_TASK = {"FINISHED", "FAILED"}
_SEVERAL = re.compile("workers|coreWorkersStats|processStats|order$")
_AT_THE_END = re.compile(r"The session ended (at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )?before Ray reported an end\.")


class Accepted(msgspec.Struct, frozen=True):
    where: str
    """Of which questions, as a pattern of how they begin."""
    field: str
    """Whose own path ends so, as a pattern."""
    allows: Callable[[Difference], bool]
    reason: str
    before: Version = (9999, 0)
    """Only in versions of Ray before this one."""

    def explains(self, difference: Difference, version: Version) -> bool:
        return (
            version < self.before
            and re.match(self.where, difference.question) is not None
            and re.search(rf"(^|[.])({self.field})$", difference.path) is not None
            and self.allows(difference)
        )


def explanation(difference: Difference, version: Version) -> Accepted | None:
    return next((accepted for accepted in ACCEPTED if accepted.explains(difference, version)), None)


def _anything(difference: Difference) -> bool:
    return True


def _measured(difference: Difference) -> bool:
    """Another value of the same kind. Of what there are several of, such as processes, there may be others."""
    live, dead = difference.live, difference.dead
    if _SEVERAL.search(difference.path) or live is ABSENT:
        return True
    numbers = isinstance(live, int | float) and isinstance(dead, int | float)
    return numbers or type(live) is type(dead)


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


def _had_no_id(difference: Difference) -> bool:
    return difference.live == "f" * 32 and str(difference.dead) in f"{difference.question} {difference.path}"


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


def _came_later(difference: Difference) -> bool:
    """An event that is not before any that the live cluster told of."""
    latest = max(_times(difference.answer).values())
    later = {event for event, time in _times(difference.history).items() if time >= latest}
    if difference.live == ABSENT:
        return difference.path.rpartition(".")[0] in later
    known = {name for name in difference.dead if f"{difference.path.removesuffix('order')}{name}" not in later}
    return known <= set(difference.live) <= set(difference.dead)


def _times(answer: Fields) -> dict[str, int]:
    ends = ".timestamp"
    return {path.removesuffix(ends): int(value) for path, value in answer.items() if path.endswith(ends)}


def _same_without_time(difference: Difference) -> bool:
    texts = (re.sub(r"(?<=status: )[-\d:. ]+", "", text) for text in (difference.live, difference.dead))
    live, dead = (sorted(text.splitlines()) for text in texts)
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
    if ABSENT in (difference.live, difference.dead):
        return False
    return bool(msgspec.json.decode(difference.live) == msgspec.json.decode(difference.dead))


def _not_told(difference: Difference) -> bool:
    """The history has nothing there, or an empty place."""
    return difference.dead in (ABSENT, None, "") or (difference.live == ABSENT and _nothing(difference.dead))


def _some_of_the_spans(difference: Difference) -> bool:
    """Every span of the task that the history has is one that the live cluster had, or a later one."""
    of_task = re.search(r"[0-9a-f]{48}#\d+", difference.path)
    if of_task is None:
        return True
    live, dead = (list(_spans(answer, of_task[0])) for answer in (difference.answer, difference.history))
    latest = max((time for _, time in live), default=0.0)
    return all(time > latest or any(name == one and abs(time - then) <= 1 for one, then in live) for name, time in dead)


def _spans(answer: Fields, task: str) -> Iterator[tuple[str, float]]:
    """Names and microseconds, of a row of the list or of the timeline."""
    for path, value in answer.items():
        if task in path and path.endswith(".event_name"):
            yield value, answer[path.removesuffix("event_name") + "start_time"] * 1000
        elif path.startswith(f".spans.{task}") and path.endswith(".ts"):
            yield path.split("#")[2], value


def _is_later(earlier: Any, later: Any) -> bool:
    return isinstance(earlier, int | float) and isinstance(later, int | float) and later > earlier


def _later(difference: Difference) -> bool:
    return _is_later(difference.dead, difference.live)


def _ray_fails(difference: Difference) -> bool:
    live = difference.answer
    return (
        live[".status code"] == 500 and "Server got itself in trouble" in live[".text"] and difference.dead in (200, "")
    )


def _without_log(difference: Difference) -> bool:
    return difference.dead == 500 or "log_info = None" in str(difference.dead)


def _without_repr(difference: Difference) -> bool:
    """`Watcher(of=shards).watch` is only known as `Watcher.watch`."""
    return re.sub(r"[(].*[)]", "", str(difference.live)) == difference.dead


def _below_named_by_repr(difference: Difference) -> bool:
    """In the tree, below a class of which an actor has its own name for itself."""
    answers = (difference.answer, difference.history)
    names = [value for answer in answers for path, value in answer.items() if path.endswith(".name")]
    classes = {name.partition("(")[0] for name in names if "(" in name}

    def concerned(node: str) -> bool:
        return any(str(answer.get(f"{node}.name")).partition("(")[0] in classes for answer in answers)

    parts = difference.path.split(".")
    if any(concerned(".".join(parts[:length])) for length in range(len(parts))):
        return True
    if parts[-1] != "order":
        return False
    nodes = (".".join([*parts[:-1], name.replace(".", "·")]) for name in {*difference.live, *difference.dead})
    others = {node for node in nodes if not concerned(node)}
    return all(f"{node}.name" in answer for node in others for answer in answers)


def _hidden(difference: Difference) -> bool:
    return "<redacted>" in str(difference.dead)


def _no_such_page(difference: Difference) -> bool:
    return difference.answer[".status code"] == 404


def _words(live: str, dead: str) -> Callable[[Difference], bool]:
    """In a table or a message these words, as patterns, stand for those."""
    return lambda difference: all(
        re.fullmatch(pattern, words) for pattern, words in ((live, difference.live), (dead, difference.dead))
    )


def _ray_raised(difference: Difference) -> bool:
    return ".raised" in difference.answer or "Failed to make request" in str(difference.answer.get(".text"))


def _of_no_rows(difference: Difference) -> bool:
    return difference.answer.get(".data.result.total") == 0


def _same_letters(difference: Difference) -> bool:
    return sorted(str(difference.live)) == sorted(str(difference.dead))


_END = r"The session ended at \S+ before Ray reported an end\."
_ACTORS, _NODES, _JOBS = "/logical/actors|/nodes/", "/nodes", "/api/(v0/)?jobs"
_STATISTICS = (
    "mem|processStats|numExecutedTasks|numPendingTasks|numRunningTasks|numObjectRefsInScope|numInPlasma|numLocalObjects|"
    "usedObjectStoreMemory|usedResources|taskQueueLength|objectRefs|objectsTotal|numOwnedObjects|numOwnedActors|"
    "numInFlightArgPinningRequests|webuiDisplay|numOfFailedArgPinningRequests|language|workerType|ipAddress|port|workerId"
)
_NOT_EVERYWHERE = "no-such-file|gcs_server[.]out|event_JOBS[.]log"
"""Files that some nodes do not have; where they are, they are never empty."""
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
    Accepted("/api/v0/tasks", "f{40}0[13]000000#0[.]profiling_data[.]events[.].+", _grew,
             "the driver is the dashboard itself, which went on"),
    Accepted("/api/v0/tasks/timeline", "ts|dur", _less_than(1),
             "Ray rounds to a quarter of a microsecond by computing in milliseconds; the history does not"),
    Accepted("/api/v0/actors", "state", _becomes("DEAD"), "an actor that was open is closed at the session's end"),
    Accepted(_ACTORS, "state", _becomes("DEAD"), "an actor that was open is closed at the session's end"),
    Accepted(_ACTORS, "endTime", _closed(_end_time), "when it was closed"),
    Accepted(_ACTORS, "timestamp", _closed(_is_later), "when it was closed"),
    Accepted(_ACTORS, "exitDetail", _closed(_text_of_the_end), "why it was closed"),
    Accepted(_ACTORS, f"({_STATISTICS})([.].+)?", lambda it: it.dead is ABSENT or _measured(it),
             "measured by the dashboard now and then; the history has the last of each, and always the worker's id"),
    Accepted("/api/v0/workers", "is_alive", lambda it: it.live is True and it.dead is False, "all processes are gone"),
    Accepted("/api/v0/workers", "exit_detail", _closed(_text_of_the_end), "why it was closed"),
    Accepted("/api/v0/workers", "end_time_ms", _closed(_end_time), "when it was closed"),
    Accepted("/api/v0/nodes", "state", _becomes("DEAD"), "the node is gone"),
    Accepted("/api/v0/nodes", "state_message", _closed(_text_of_the_end), "why it was closed"),
    Accepted("/api/v0/nodes", "end_time_ms", _closed(_end_time), "when it was closed"),
    Accepted(_JOBS, "status", _becomes("STOPPED"), "a job that was running is stopped by its cluster's end"),
    Accepted(_JOBS, "message", _closed(lambda live, dead: bool(_AT_THE_END.fullmatch(str(dead)))), "why it stopped"),
    Accepted(_JOBS, "end_time", _closed(_end_time), "when it was stopped"),
    Accepted("/api/jobs/", "order", _same_names, "Ray lists submissions in no order; pages sort them by their start"),
    Accepted("/api/jobs/(running|serving)-job/logs", "logs", _goes_on, "the job wrote on after it was asked"),
    Accepted(_NODES, f"[0-9a-f]{{56}}[.]({_MEASURED})([.].+)?", _measured, "measured anew every few seconds"),
    Accepted(_NODES, f"data[.]detail[.]({_MEASURED})([.].+)?", _measured, "measured anew every few seconds"),
    Accepted(f"/nodes/{NOBODY}", "data[.]detail[.].+", _grew, "Ray's page of a node that is not there is white"),
    Accepted("/api/cluster_status", "clusterStatus", _same_without_time,
             "its heading has the time of the last look, and demands are in no order"),
    Accepted("/events", "order", _same_names, "Ray's times are whole seconds: within one, there is no order"),
    Accepted("/events", ".*", _came_later, "the autoscaler went on complaining after it was asked"),
    Accepted(r"/api/v0/logs\?", "order", _without_empty_folders,
             "Ray lists files as the file system does; pages sort them"),
    Accepted(r"/api/v0/logs\?", ".*/", _without_empty_folders, "a store has no empty folders"),
    Accepted(r"/api/v0/logs/file\?node_id", "text", _goes_on, "Ray wrote on after it was asked"),
    Accepted(r"/api/v0/logs/file\?actor_id", "text", _goes_on, "the actor wrote on after it was asked"),
    Accepted(f"/api/v0/logs/file.*({_NOT_EVERYWHERE})", "status code",
             lambda it: (it.answer[".text"], it.dead) == ("", 500),
             "Ray may break off before it has said that there is no such file"),
    Accepted("/api/v0/logs/file", "text", _both_refuse, "refused by both, in other words: the directories are gone"),
    Accepted("/api/v0/", "serialized_runtime_env", _same_json, "the same JSON, without spaces"),
    Accepted(r"/api/v0/tasks\?limit=10001", ".*", _anything, "a history has no limit of 10,000 rows"),
    Accepted(r"/api/v0/tasks\?detail=1&filter_keys=color", "msg", _same_letters, "Ray's list of columns has no order"),
    Accepted(r"/api/v0/tasks\?detail=1&filter_keys=color", ".*", _of_no_rows, "Ray only checks it with rows"),
    Accepted("/api/serve/", "controller_health_metrics([.].+)?", _anything, "measured anew by every look"),
    Accepted("/api/profiling_enabled", "data[.]profilingDefaults([.].+)?", _anything, "there is nothing to profile"),
    Accepted("/api/grafana_health", ".*", _anything, "there is no Grafana: the pages leave their charts out"),
    Accepted("/api/prometheus_health", ".*", _anything, "there is no Prometheus: the pages leave their charts out"),
    # What Ray's own clients print.
    Accepted(".* by ", "words", _words(r"RUNNING|PENDING_\w+", "FAILED"), "a task that was open is closed"),
    Accepted(".* by ", "words", _words("", "NODE_DIED"), "why it was closed"),
    Accepted(".* by ", "words", _words("ALIVE|PENDING_CREATION", f"DEAD( {_END})?"), "an actor or a node is closed"),
    Accepted("/api/v0/workers by ", "words", _words("True", "False"), "all processes are gone"),
    Accepted(".* by ", "words", _words("RUNNING Job is currently running.", f"STOPPED {_END}"), "a job is stopped"),
    Accepted("/api/jobs/ by ", "words", _words(".*RUNNING.*|INFO.*", ".*(STOPPED|stopped).*|WARN.*"), "is stopped"),
    Accepted("/api/jobs/ by ", "words", _words(".*Job is currently running.*", f".*({_END}.*)?"), "why it stopped"),
    Accepted("/api/jobs/ by ", "words", _words("end_time=None,", r"end_time=\d+,"), "when it was stopped"),
    Accepted("/api/jobs/ by ray job logs (running|serving)-job", "words", lambda it: not it.live, "the job wrote on"),
    Accepted("/api/jobs/ by jobs", "status[.].*", _becomes("STOPPED"), "a job that was running is stopped"),
    Accepted("/api/jobs/ by jobs", "logs[.](running|serving)-job", _goes_on, "the job wrote on after it was asked"),
    Accepted("/api/v0/objects", ".*", _anything, "which objects there are is known only while a cluster runs"),
    Accepted("/api/v0/runtime_envs", ".*", _anything, "asked of every node: a collector keeps them only when told to"),
    Accepted("/api/v0/cluster_events", ".*", _ray_raised, "Ray cannot list its own"),
    # Versions that had less, exported less, or did otherwise.
    Accepted("/api/v0/(tasks|actors)", "fallback_strategy([.]options)?", _grew, "this Ray did not have it", (2, 55)),
    Accepted("/api/v0/placement_groups", r"topology_\w+", _grew, "this Ray did not have it", (2, 58)),
    Accepted("/(logical/actors|nodes)", "tpus", _grew, "this Ray did not have it", (2, 58)),
    Accepted(_ACTORS, "actorId", _had_no_id, "Ray sometimes tells of a change of an actor without saying of which"),
    Accepted("/api/profiling_enabled", ".*", _no_such_page, "this Ray did not have it", (2, 56)),
    Accepted("/api/v0/runtime_env_redaction", ".*", _no_such_page, "this Ray did not have it", (2, 60)),
    Accepted(".* in a browser", "serialized_runtime_env|env_vars[.].+", _hidden,
             "this Ray did not hide the values of environment variables", (2, 60)),
    Accepted("/api/v0/tasks", "task_log_info([.].+)?", _not_told,
             "not exported for a task that begins and ends within a second, and before 2.54 for none", (2, 58)),
    Accepted("/api/v0/logs/file.task_id", "status code|text", _without_log, "so its lines cannot be found", (2, 58)),
    Accepted("/api/v0/logs/file.task_id", "status code|text", _ray_fails,
             "Ray failed for a task that wrote nothing", (2, 58)),
    Accepted("/api/v0/tasks", "(profiling_data|spans)[.].+", _some_of_the_spans,
             "of the spans of one second only the last was exported", (2, 55)),
    Accepted("/api/v0/tasks/timeline", "workers[.].+", _not_told, "and of some workers none", (2, 55)),
    Accepted("/api/v0/tasks", "created_ms|(creation|start|end)_time_ms|timestamp", _later,
             "a restarted actor's tasks had the same numbers again; the history has the first times", (2, 55)),
    Accepted("/api/v0/tasks", "component_id", _anything, "and the first worker", (2, 55)),
    Accepted("/api/v0/actors", "repr_name", _not_told, "an actor's own name for itself was not exported", (2, 54)),
    Accepted("/api/v0/tasks", "name", _without_repr, "an actor's own name for itself was not exported", (2, 54)),
    Accepted("/api/v0/tasks by ", "words", _without_repr, "an actor's own name for itself was not exported", (2, 54)),
    Accepted("/api/v0/tasks/summarize.*lineage", ".*", _below_named_by_repr,
             "so the tree has it with the others of its class", (2, 54)),
)  # fmt: skip
