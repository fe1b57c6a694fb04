"""Exceptions of user code that are hidden: behind an actor that was ended, a library's wrapper, a pool, or asyncio."""

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task, session_with_task
from rayhistory.diagnosis.session_facts import ActorFacts, SessionFacts
from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups

ACTOR = "aa" * 16
KILLED = "The actor is dead because it was killed by `ray.kill`."
REMOVED = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT Worker exit detail: "
    "Destroying worker since its placement group was removed. Placement group id: 2848"
)
LEFT = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit detail: "
    "Worker exits by an user request. Worker exits with an exit code 0. exit_actor() is called."
)
DIED = f"ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tactor_id: {ACTOR}\n"


def calls(text: str, **more: object) -> FailureGroup:
    return failed_task(text, error_type="ACTOR_DIED", type="ACTOR_TASK", function="Mailbox.put", actor_id=ACTOR, **more)


def only(facts: SessionFacts) -> Finding:
    (found,) = diagnose(facts).findings
    return found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (KILLED, "the program killed the actor with ray.kill()"),
        (REMOVED, "the program removed the placement group of the actor"),
        (LEFT, "the actor had called exit_actor()"),
    ],
)
def test_actor_that_the_program_ended_is_the_cause_of_all_that_needed_it(text: str, reason: str) -> None:
    """A task calls the dead actor, and raises; the driver raises this again."""
    raised = f'ray::consume() (pid=7, ip=10.0.0.7)\n  File "/app/main.py", line 8, in consume\n{DIED}{text}'
    actor = ActorFacts(actor_id=ACTOR, class_name="Mailbox", cause="actor_died_error_context", reason="WORKER_DIED",
                       text=text, end_ms=1_800_000_000_500)  # fmt: skip
    consumer = failed_task(f"User exception:\n{raised}", function="consume")
    output = f"Traceback (most recent call last):\nray.exceptions.RayTaskError(ActorDiedError): {raised}\n"
    found = only(
        SessionFacts(jobs=[failed_job(output)], actors=[actor] if text != KILLED else [],
                     failures=FailureGroups([calls(text, count=9), consumer], 10, 2))
    )  # fmt: skip
    assert (found.code, found.confidence) == ("user_exception", "certain")
    assert found.headline == f"9 calls of Mailbox.put failed, because {reason}"
    assert (found.counts.tasks, found.counts.jobs, found.consequences) == (10, 1, 2)
    assert found.detail == "Failed because of it: 1 task, 1 job. Its result was needed at main.py:8 in consume."


def test_driver_that_calls_an_actor_after_it_killed_it_is_a_consequence() -> None:
    output = f'Traceback (most recent call last):\n  File "/app/main.py", line 9, in <module>\n{DIED}{KILLED}\n'
    found = only(SessionFacts(jobs=[failed_job(output)], failures=FailureGroups([calls(KILLED)], 1, 1)))
    assert found.headline == "1 call of Mailbox.put failed, because the program killed the actor with ray.kill()"
    assert (found.counts.tasks, found.counts.jobs) == (1, 1)


def test_calls_of_an_actor_that_died_on_a_lost_node_are_not_explained_by_the_program() -> None:
    facts = SessionFacts(failures=FailureGroups([calls("The actor is dead because its node has died.")], 1, 1))
    assert only(facts).code == "unexplained"


WRAPPED = (
    "ray::Map(clean)() (pid=7, ip=10.0.0.7)\n"
    '  File "/app/udf.py", line 4, in {function}\n    row["prize"]\nKeyError: \'prize\'\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
    "ray::Map(clean)() (pid=7, ip=10.0.0.7)\n"
    "ray.exceptions.UserCodeException: UDF failed to process a data block.\nFailed after 1/1 attempts."
)


def session_with_udf(function: str) -> SessionFacts:
    """Return a session of Ray Data. Ray's event has the end of the error, and the driver printed all of it."""
    whole = WRAPPED.format(function=function)
    facts = session_with_task(f"User exception:\n{whole[-200:]}", function="_map_task")
    output = f"Traceback (most recent call last):\nray.exceptions.RayTaskError(UserCodeException): {whole}\n"
    return msgspec.structs.replace(facts, jobs=[failed_job(output)])


def test_exception_of_a_function_of_ray_data_is_named_and_not_its_wrapper() -> None:
    found = only(session_with_udf("clean"))
    assert found.headline == "Task Map(clean) raised an exception: KeyError: 'prize' (udf.py:4 in clean)"
    assert "UserCodeException" in found.evidence[0].text


def test_functions_of_ray_data_have_different_fingerprints() -> None:
    one, other = (only(session_with_udf(function)).fingerprint for function in ("clean", "join"))
    assert one != other


def test_exception_in_a_pool_is_not_the_drivers() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/app/main.py", line 9, in main\n    pool.map(invert, range(4))\n'
        '  File "/lib/python3.11/site-packages/ray/util/multiprocessing/pool.py", line 361, in get\n'
        "    raise result.underlying\nnumpy.linalg.LinAlgError: Singular matrix\n"
    )
    found = only(SessionFacts(jobs=[failed_job(text)]))
    assert found.code == "user_exception"
    assert (
        found.headline == "A function in a pool raised an exception: LinAlgError: Singular matrix (main.py:9 in main)"
    )


def test_methods_of_async_actors_without_frames_are_two_findings() -> None:
    """Ray leaves out the frames of a coroutine if its exception has a cause."""
    text = (
        "User exception:\nray::Crawler.{0}() (pid=7, ip=10.0.0.7)\n"
        '  File "/lib/python3.11/concurrent/futures/_base.py", line 401, in __get_result\n'
        "    raise self._exception\nTimeoutError"
    )
    groups = [failed_task(text.format(name), function=f"Crawler.{name}") for name in ("crawl", "ping")]
    found = diagnose(SessionFacts(failures=FailureGroups(groups, 2, 2))).findings
    assert sorted(each.headline for each in found) == [
        "Task Crawler.crawl raised an exception: TimeoutError", "Task Crawler.ping raised an exception: TimeoutError",
    ]  # fmt: skip
