"""The ends of log files: how much is read of them, and what a line of megabytes hides."""

import asyncio

import msgspec

from rayhistory.diagnosis.log_tails import TAIL_BYTES, read_driver_outputs, read_stderr_tails
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import log_evidence
from rayhistory.diagnosis.session_facts import JobFacts
from rayhistory.diagnosis.tracebacks import parse_exception
from support.memory_logs import NODE_A, MemoryLogs

JOB = failed_job("", node_id=NODE_A)
DRIVER_LOG = (NODE_A, "job-driver-nightly.log")


def output_of(text: str) -> tuple[JobFacts, MemoryLogs]:
    logs = MemoryLogs({DRIVER_LOG: text.encode()})
    (found,) = asyncio.run(read_driver_outputs(logs, [msgspec.structs.replace(JOB, output="")]))
    return found, logs


def test_exception_with_a_message_of_megabytes_on_one_line_is_found() -> None:
    text = 'Traceback (most recent call last):\n  File "/app/a.py", line 3, in run\nValueError: ' + "x" * 5_000_000
    found, _ = output_of(f"{'noise ' * 100_000}\n{text}\n")
    raised = parse_exception(found.output)
    assert raised and (raised.short_type, str(raised.frame)) == ("ValueError", "/app/a.py:3 in run")
    assert len(found.output) <= TAIL_BYTES


def test_line_of_many_megabytes_is_not_read_whole() -> None:
    found, logs = output_of("x" * 40_000_000)
    assert len(found.output) <= TAIL_BYTES
    assert max(end - start for _, _, start, end in logs.reads) <= 16 << 20


def test_only_the_end_of_the_stderr_of_a_dead_worker_is_read() -> None:
    worker = dead_example_worker(node_id=NODE_A)
    path = f"worker-{worker.worker_id}-01000000-4376.err"
    logs = MemoryLogs({(NODE_A, path): b"y" * 3_000_000 + b"\nFatal Python error: Aborted\n"})
    (found,) = asyncio.run(read_stderr_tails(logs, [worker]))
    assert found.stderr and found.stderr.endswith("\nFatal Python error: Aborted\n")
    assert len(found.stderr) == TAIL_BYTES
    assert [end - start for _, _, start, end in logs.reads] == [TAIL_BYTES]


def test_stdout_is_read_if_stderr_has_only_markers_of_ray() -> None:
    worker = dead_example_worker(node_id=NODE_A)
    path = f"worker-{worker.worker_id}-01000000-4376"
    marks = b":job_id:01000000\n:actor_name:Counter\n"
    logs = MemoryLogs({(NODE_A, f"{path}.err"): marks, (NODE_A, f"{path}.out"): marks + b"counter is now 3\n"})
    (found,) = asyncio.run(read_stderr_tails(logs, [worker]))
    assert (found.stderr, found.stdout) == ("", "counter is now 3\n")
    evidence = log_evidence(found, death_facts(found))
    assert (evidence.text.strip(), evidence.url) == ("counter is now 3", f"logs/{NODE_A}/{path}.out?end=1")
