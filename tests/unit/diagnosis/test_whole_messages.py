"""Errors that Ray's events have only in part, and errors that the driver raised again in another form."""

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.session_facts import ActorFacts, SessionFacts
from rayhistory.diagnosis.whole_messages import with_whole_messages
from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups

_EXPORTED_CHARS = 500
REMOTE = "\x1b[36mray::load()\x1b[39m (pid=77, ip=10.0.0.7)\n"
LIBRARY = "".join(
    f'  File "/x/site-packages/pandas/io{n}.py", line {n}, in read{n}\n    read(path)\n' for n in range(9)
)
ERROR = (
    f'{REMOTE}  File "/app/load.py", line 12, in load\n    read(path)\n{LIBRARY}'
    "FileNotFoundError: [Errno 2] No such file or directory: 'part-7.csv'"
)
DRIVER = 'Traceback (most recent call last):\n  File "/app/main.py", line 9, in <module>\n    ray.get(refs)\n'
RAISED = f"{DRIVER}ray.exceptions.RayTaskError(FileNotFoundError): {ERROR}\n"


def task(message: str, **more: object) -> FailureGroup:
    return failed_task(f"User exception:\n{message[-_EXPORTED_CHARS:]}", function="load", **more)


def diagnosed(message: str, output: str) -> Diagnosis:
    return diagnose(SessionFacts(jobs=[failed_job(output)], failures=FailureGroups([task(message)], 1, 1)))


def test_cut_error_has_the_frame_of_the_task_from_the_drivers_output() -> None:
    found = diagnosed(ERROR, RAISED)
    assert [finding.code for finding in found.findings] == ["user_exception"]
    assert "(load.py:12 in load)" in found.findings[0].headline
    assert "ray::load()" in found.findings[0].evidence[0].text


def test_output_of_another_error_does_not_replace_a_message() -> None:
    facts = SessionFacts(
        jobs=[failed_job(RAISED.replace("part-7.csv", "model.bin"))],
        failures=FailureGroups([task(ERROR)], 1, 1),
    )
    assert with_whole_messages(facts).failures == facts.failures


def test_error_of_another_member_of_the_group_is_the_same() -> None:
    found = diagnosed(ERROR.replace("part-7", "part-12"), RAISED)
    assert [finding.code for finding in found.findings] == ["user_exception"]


def test_driver_that_wraps_the_error_of_a_task_is_its_consequence() -> None:
    connector = "\nThe above exception was the direct cause of the following exception:\n\n"
    wrapped = (
        f'{RAISED}{connector}{DRIVER}  File "/app/main.py", line 14, in main\n    raise\nRuntimeError: import failed\n'
    )
    found = diagnosed(ERROR, wrapped)
    assert found.verdict and found.verdict.code == "user_exception"
    assert found.findings[0].counts.jobs == 1


def test_handled_error_of_a_task_is_not_the_cause_of_a_later_one() -> None:
    found = diagnosed(ERROR, f"{RAISED}skipped\n{DRIVER}KeyError: 'rate'\n")
    assert found.verdict and found.verdict.code == "driver_exception"


def test_streaming_generator_has_no_frames() -> None:
    error = '\x1b[36mray::load()\x1b[39m (pid=9, ip=10.0.0.7)\n    raise ValueError("bad row")\nValueError: bad row 3'
    found = diagnosed(error, f"{DRIVER}ray.exceptions.RayTaskError(ValueError): {error}\n")
    assert found.verdict and found.verdict.headline == "Task load raised an exception: ValueError: bad row 3"
    assert found.findings[0].counts.jobs == 1


def test_specific_cause_is_found_below_the_exception_raised_from_it() -> None:
    error = (
        'ray::load() (pid=9, ip=10.0.0.7)\n  File "/app/net.py", line 3, in forward\n    matmul()\n'
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\n"
        "{connector}\n\n"
        'ray::load() (pid=9, ip=10.0.0.7)\n  File "/app/net.py", line 9, in step\n    raise\nRuntimeError: failed'
    )
    direct = error.format(connector="The above exception was the direct cause of the following exception:")
    handled = error.format(connector="During handling of the above exception, another exception occurred:")
    codes = {text: diagnosed(text, f"{DRIVER}RayTaskError: {text}\n").verdict for text in (direct, handled)}
    assert [verdict and verdict.code for verdict in codes.values()] == ["cuda_out_of_memory", "user_exception"]
    assert "Tried to allocate 2.00 GiB (net.py:3 in forward)" in str(codes[direct])


def test_lookup_of_a_named_actor_fails_because_the_actor_died() -> None:
    died = ActorFacts(actor_id="aa" * 16, class_name="Service", name="service", job_id="02000000", reason="WORKER_DIED",
                      cause="actor_died_error_context", text="it died", end_ms=1_800_000_001_000)  # fmt: skip
    output = f"{DRIVER}ValueError: Failed to look up actor with name 'service'. This could because ..."
    first = diagnose(SessionFacts(jobs=[failed_job(output)], actors=[died])).findings[0]
    assert (first.counts.actors, first.counts.jobs) == (1, 1)
    other = diagnose(SessionFacts(jobs=[failed_job(output.replace("'service'", "'cache'"))], actors=[died]))
    assert other.verdict and other.verdict.code == "driver_exception"


def test_constructor_that_runs_when_its_driver_ends_is_no_failure() -> None:
    died = ActorFacts(actor_id="aa" * 16, class_name="Slow", job_id="01000000", cause="actor_died_error_context",
                      reason="OWNER_DIED", owner_id="dd" * 28, end_ms=1_800_000_002_000)  # fmt: skip
    creation = failed_task("", error_type="WORKER_DIED", type="ACTOR_CREATION_TASK", actor_id="aa" * 16,
                           function="Slow.__init__", started_ms=1_800_000_000_500)  # fmt: skip
    output = f"{DRIVER}ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
    found = diagnose(
        SessionFacts(jobs=[failed_job(output)], actors=[died], failures=FailureGroups([creation], 1, 1))
    ).findings
    assert [finding.code for finding in found] == ["driver_exception"]
    assert "gave up waiting for Slow.__init__" in found[0].headline


def test_runtime_environment_of_the_driver_could_not_be_prepared() -> None:
    output = (
        f'{DRIVER}  File "/x/site-packages/ray/_private/runtime_env/working_dir.py", line 121, in upload\n'
        "    raise ValueError(\nValueError: directory /nowhere must be an existing directory\n"
    )
    verdict = diagnose(SessionFacts(jobs=[failed_job(output)])).verdict
    assert verdict and verdict.code == "runtime_env_failed"
