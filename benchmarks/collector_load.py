"""The load generator of `collector.py`: posts prepared bodies over raw sockets and prints one JSON line."""

import argparse
import base64
import json
import random
import socket
import threading
import time
from typing import Any

SESSION = "session_2026-11-15_19-18-08_055078_15551"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
CONNECTIONS = 4
BODIES = 24


def random_id(rng: random.Random, size: int) -> str:
    return base64.b64encode(rng.randbytes(size)).decode()


def one_event(rng: random.Random, number: int) -> dict[str, Any]:
    """Make an event of about 1 KB as Ray 2.60 posts it: a definition or a lifecycle event."""
    job = f"AQAAA{'AQgw'[rng.randrange(4)]}=="
    base = {
        "eventId": random_id(rng, 28),
        "sourceType": "CORE_WORKER",
        "timestamp": f"2026-11-15T19:18:{number % 60:02d}.{rng.randrange(10**9):09d}Z",
        "severity": "INFO",
        "message": "",
        "sessionName": SESSION,
        "nodeId": base64.b64encode(bytes.fromhex(NODE)).decode(),
    }
    task = random_id(rng, 24)
    if number % 3 == 0:
        function = {
            "moduleName": "__main__",
            "className": "",
            "functionName": f"process_batch_{number % 17}",
            "functionHash": "7d5d7c4e0ba24f1b8f1f7d5f0a3b6f10",
        }
        definition = {
            "taskId": task,
            "taskAttempt": 0,
            "taskType": "NORMAL_TASK",
            "language": "PYTHON",
            "taskFunc": {"pythonFunctionDescriptor": function},
            "taskName": f"process_batch_{number % 17}",
            "requiredResources": {"CPU": 1.0},
            "jobId": job,
            "parentTaskId": random_id(rng, 24),
            "placementGroupId": "////////////////////////",
            "refIds": {},
            "serializedRuntimeEnv": '{"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/home/ray/app"}}',
            "labelSelector": {},
            "isDetachedActor": False,
            "callSite": "File /home/ray/app/main.py, line 120, in main\n" * 4,
        }
        return {**base, "eventType": "TASK_DEFINITION_EVENT", "taskDefinitionEvent": definition}
    states = ["PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FINISHED"]
    lifecycle = {
        "taskId": task,
        "taskAttempt": 0,
        "stateTransitions": [
            {"state": state, "timestamp": f"2026-11-15T19:18:{number % 60:02d}.{rng.randrange(10**9):09d}Z"}
            for state in states[: 3 + number % 3]
        ],
        "nodeId": base["nodeId"],
        "workerId": random_id(rng, 28),
        "workerPid": rng.randrange(10**5),
        "jobId": job,
        "actorReprName": "",
        "taskLogInfo": {
            "stdoutFile": f"/tmp/ray/{SESSION}/logs/worker-{rng.randbytes(14).hex()}-01000000-{number}.out",
            "stderrFile": f"/tmp/ray/{SESSION}/logs/worker-{rng.randbytes(14).hex()}-01000000-{number}.err",
            "stdoutStart": str(rng.randrange(10**6)),
            "stdoutEnd": str(rng.randrange(10**6)),
        },
    }
    return {**base, "eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": lifecycle}


def requests(batch: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    prepared = []
    for _ in range(BODIES):
        body = json.dumps([one_event(rng, number) for number in range(batch)]).encode()
        head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        prepared.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return prepared


def load(port: int, *, rate: float, batch: int, seconds: float) -> None:
    """Post batches at the given rate and print the result. Rate 0 posts as fast as responses arrive."""
    bodies = requests(batch, 7)
    latencies: list[float] = []
    refused = [0]
    sent_bytes = [0]
    begin = time.perf_counter() + 0.2
    interval = CONNECTIONS * batch / rate if rate else 0.0

    def one_connection(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due = begin + number * interval / CONNECTIONS
            count = number
            while due < begin + seconds:
                time.sleep(max(0.0, due - time.perf_counter()))
                request = bodies[count % BODIES]
                count += 1
                peer.sendall(request)
                response = b""
                while b"\r\n\r\n" not in response:
                    response += peer.recv(4096)
                now = time.perf_counter()
                if b" 200 " in response[:16]:
                    latencies.append(now - due)
                    sent_bytes[0] += len(request)
                else:
                    refused[0] += 1
                    time.sleep(0.05)
                due = due + interval if rate else time.perf_counter()

    threads = [threading.Thread(target=one_connection, args=(n,)) for n in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    latencies.sort()

    def percentile(share: float) -> float:
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1000 if latencies else 0.0

    result = {
        "events": len(latencies) * batch,
        "seconds": elapsed,
        "megabytes": sent_bytes[0] / 1e6,
        "p50": percentile(0.5),
        "p99": percentile(0.99),
        "max": percentile(1.0),
        "refused": refused[0],
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    load(options.port, rate=options.rate, batch=options.batch, seconds=options.seconds)


if __name__ == "__main__":
    main()
