# ruff: noqa: E501, PLR0917 (event templates, as Ray prints them)
"""Generate sessions of any size: about four events per task, out of order and some twice, as Ray posts them.

python benchmarks/generate.py DIRECTORY TASKS [--plain]
"""

import argparse
import base64
import json
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from isal import igzip

from rayhistory.sessions import Layout, SessionRef

BEGIN = 1_794_770_000_000_000_000
SESSION = "session_2026-11-15_19-18-08_055078_15551"
TASKS_PER_FILE = 12_500
NODES = 8
"""Nodes of a session whose number of objects is given. Otherwise each object is of another node."""
SCATTER = 0x9E3779B97F4A7C15
FUNCTIONS = [f"stage_{i}" for i in range(40)]
ERROR = (
    'User exception:\\nray::work() (pid=16293, ip=192.0.2.2)\\n  File \\"/home/ray/work/work.py\\", line 13, in work\\n'
    '    raise RuntimeError(\\"first fails\\")\\nRuntimeError: first fails'
)


class Part(NamedTuple):
    """The tasks of one object."""

    directory: Path
    ref: SessionRef
    first: int
    tasks: int
    compressed: bool
    few_nodes: bool


def session_ref(tasks: int) -> SessionRef:
    return SessionRef("default", f"bench-{tasks}", SESSION)


def generate(
    directory: Path,
    tasks: int,
    *,
    compressed: bool = True,
    ref: SessionRef | None = None,
    objects: int = 0,
    first: int = 0,
) -> SessionRef:
    """Write a session and return its reference. With `objects`, it has that many, of a few nodes.

    `first` is the number of the first task, to add tasks to a session.
    """
    ref = ref or session_ref(tasks)
    tasks_per_file = -(-tasks // objects) if objects else TASKS_PER_FILE
    parts = [
        Part(directory, ref, number, min(tasks_per_file, first + tasks - number), compressed, few_nodes=bool(objects))
        for number in range(first, first + tasks, tasks_per_file)
    ]
    if len(parts) == 1:
        _write_part(parts[0])
    else:
        with ProcessPoolExecutor() as pool:
            list(pool.map(_write_part, parts, chunksize=-(-len(parts) // 32)))
    marker = directory / Layout().metadata_key(ref)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return ref


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _time(ns: int) -> str:
    seconds, fraction = divmod(ns, 10**9)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}"
    while digits.endswith("000"):  # as JSON of protobuf does
        digits = digits[:-3]
    return f"{stamp}.{digits}Z" if digits else f"{stamp}Z"


def generate_events(first: int, count: int) -> list[str]:
    """Return the event lines of these tasks, in the order in which they arrive."""
    rng = random.Random(first)
    node, head = rng.randbytes(28), rng.randbytes(28)
    return _events(rng, first, count, node, head)


def _events(rng: random.Random, first: int, count: int, node: bytes, head: bytes) -> list[str]:
    workers = [rng.randbytes(28) for _ in range(16)]
    lines: list[str] = []
    for number in range(first, first + count):
        lines += _task_events(rng, number, node, rng.choice(workers))
    lines += rng.sample(lines, len(lines) // 200)
    window = 2000
    for start in range(0, len(lines), window):
        part = lines[start : start + window]
        rng.shuffle(part)
        lines[start : start + window] = part
    return _cluster_events(head, node) + lines if first == 0 else lines


def _write_part(part: Part) -> None:
    directory, ref, first, count, compressed, few_nodes = part
    rng = random.Random(first)
    node = random.Random(rng.randrange(NODES)).randbytes(28) if few_nodes else rng.randbytes(28)
    head = rng.randbytes(28)
    lines = _events(rng, first, count, node, head)
    key = Layout().events_key(ref, node.hex(), "job_events/01000000", BEGIN + first, compressed=compressed)
    path = directory / key
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(lines).encode()
    path.write_bytes(igzip.compress(data, 1) if compressed else data)


def _event(kind: str, at: int, rng: random.Random, nested: str, node: str, source: str = "CORE_WORKER") -> str:
    return (
        f'{{"eventId": "{_b64(rng.randbytes(28))}", "sourceType": "{source}", "eventType": "{kind}", '
        f'"timestamp": "{_time(at)}", "severity": "INFO", "sessionName": "{SESSION}", {nested}, '
        f'"nodeId": "{node}", "message": ""}}\n'
    )


def _task_events(rng: random.Random, number: int, node: bytes, worker: bytes) -> list[str]:
    unique = number * SCATTER % 2**64  # ids begin with a hash, as Ray's do
    task = _b64(unique.to_bytes(8, "big") + b"\xff" * 12 + b"\x01\0\0\0")
    parent, job = _b64(b"\xff" * 20 + b"\x01\0\0\0"), "AQAAAA=="
    function, node_text, worker_text = FUNCTIONS[number % len(FUNCTIONS)], _b64(node), _b64(worker)
    attempts = 2 if number % 25 == 0 else 1
    at = BEGIN + number * 150_007
    events = []
    for attempt in range(attempts):
        failed = attempt < attempts - 1 or number % 50 == 1
        times = [at + attempt * 10**9 + offset for offset in (0, 70_000, 9_000_000, 9_400_000, 150_000_000)]
        definition = (
            f'"taskDefinitionEvent": {{"taskId": "{task}", "taskFunc": {{"pythonFunctionDescriptor": {{"moduleName": '
            f'"pipeline.work", "functionName": "{function}", "functionHash": "f8230cb104b04607bd4f8bbc87867346", '
            f'"className": ""}}}}, "taskName": "{function}", "requiredResources": {{"CPU": 1.0}}, "jobId": "{job}", '
            f'"parentTaskId": "{parent}", "placementGroupId": "////////////////////////", "serializedRuntimeEnv": '
            f'"{{\\"env_vars\\": {{\\"STAGE\\": \\"production\\", \\"REGION\\": \\"eu-1\\"}}}}", "taskAttempt": {attempt}, '
            '"taskType": "NORMAL_TASK", "language": "PYTHON", "refIds": {}, "labelSelector": {}, '
            '"isDetachedActor": false}'
        )
        events.append(_event("TASK_DEFINITION_EVENT", times[0], rng, definition, node_text))
        head = f'"taskLifecycleEvent": {{"taskId": "{task}", "taskAttempt": {attempt}, "jobId": "{job}", '
        end_state = "FAILED" if failed else "FINISHED"
        error = (
            f', "rayErrorInfo": {{"errorMessage": "{ERROR}", "errorType": "TASK_EXECUTION_EXCEPTION"}}'
            if failed
            else ""
        )
        owner = (
            f'{head}"stateTransitions": [{{"state": "PENDING_ARGS_AVAIL", "timestamp": "{_time(times[0])}"}}, '
            f'{{"state": "PENDING_NODE_ASSIGNMENT", "timestamp": "{_time(times[1])}"}}, {{"state": "SUBMITTED_TO_WORKER", '
            f'"timestamp": "{_time(times[2])}"}}, {{"state": "{end_state}", "timestamp": "{_time(times[4])}"}}], '
            f'"nodeId": "{node_text}", "workerId": "{worker_text}", "workerPid": 0{error}}}'
        )
        executor = (
            f'{head}"stateTransitions": [{{"state": "RUNNING", "timestamp": "{_time(times[3])}"}}], "nodeId": "", '
            f'"workerId": "", "workerPid": {16000 + number % 400}, "isDebuggerPaused": false, "taskLogInfo": '
            f'{{"stdoutFile": "/tmp/ray/{SESSION}/logs/worker-{worker.hex()}-01000000-16293.out", "stderrFile": '
            f'"/tmp/ray/{SESSION}/logs/worker-{worker.hex()}-01000000-16293.err", "stdoutStart": "{number}", '
            f'"stdoutEnd": "{number + 40}", "stderrStart": "0", "stderrEnd": "0"}}}}'
        )
        spans = ", ".join(
            f'{{"startTime": "{times[3] + i}", "endTime": "{times[4] - i}", "extraData": "{{}}", "eventName": "{name}"}}'
            for i, name in enumerate(
                ("task:deserialize_arguments", "task:execute", "task:store_outputs", f"task::{function}")
            )
        )
        profile = (
            f'"taskProfileEvents": {{"taskId": "{task}", "jobId": "{job}", "attemptNumber": {attempt}, "profileEvents": '
            f'{{"componentType": "worker", "componentId": "{worker_text}", "nodeIpAddress": "192.0.2.2", '
            f'"events": [{spans}]}}}}'
        )
        events.append(_event("TASK_LIFECYCLE_EVENT", times[4], rng, owner, node_text))
        events.append(_event("TASK_LIFECYCLE_EVENT", times[3], rng, executor, node_text))
        events.append(_event("TASK_PROFILE_EVENT", times[4], rng, profile, node_text))
    return events


def _cluster_events(head: bytes, node: bytes) -> list[str]:
    rng = random.Random(0)
    found = []
    for raw, extra in ((head, {"node:__internal_head__": 1.0}), (node, {})):
        text = _b64(raw)
        definition = {"nodeId": text, "nodeIpAddress": "192.0.2.2", "labels": {}, "startTimestamp": _time(BEGIN),
                      "hostname": "bench", "nodeName": "192.0.2.2", "instanceId": "", "instanceTypeName": ""}  # fmt: skip
        lifecycle = {"nodeId": text, "stateTransitions": [
            {"timestamp": _time(BEGIN), "resources": {"CPU": 16.0, **extra}, "state": "ALIVE"}]}  # fmt: skip
        for kind, name, nested in (
            ("NODE_DEFINITION_EVENT", "nodeDefinitionEvent", definition),
            ("NODE_LIFECYCLE_EVENT", "nodeLifecycleEvent", lifecycle),
        ):
            found.append(_event(kind, BEGIN, rng, f'"{name}": {json.dumps(nested)}', text, "GCS"))
    job = {"jobId": "AQAAAA==", "driverPid": "16195", "driverNodeId": _b64(head), "entrypoint": "python pipeline.py",
           "config": {"serializedRuntimeEnv": "{}", "metadata": {}}}  # fmt: skip
    created = {"jobId": "AQAAAA==", "stateTransitions": [{"state": "CREATED", "timestamp": _time(BEGIN)}]}
    found.append(_event("DRIVER_JOB_DEFINITION_EVENT", BEGIN, rng, f'"driverJobDefinitionEvent": {json.dumps(job)}',
                        _b64(head), "GCS"))  # fmt: skip
    found.append(_event("DRIVER_JOB_LIFECYCLE_EVENT", BEGIN, rng, f'"driverJobLifecycleEvent": {json.dumps(created)}',
                        _b64(head), "GCS"))  # fmt: skip
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate a session with the given number of tasks.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("tasks", type=int)
    parser.add_argument("--plain", action="store_true", help="store events uncompressed")
    arguments = parser.parse_args()
    start_time = time.monotonic()
    written = generate(arguments.directory, arguments.tasks, compressed=not arguments.plain)
    print(f"{written.path} in {time.monotonic() - start_time:.1f} s")
