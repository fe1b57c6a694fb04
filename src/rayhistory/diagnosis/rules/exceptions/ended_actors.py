"""Calls of actors that their own program ended: with ray.kill(), with exit_actor(), or by removing their resources."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Counts
from rayhistory.diagnosis.headlines import frame_place, one_line, plural, things
from rayhistory.diagnosis.rules.exceptions.raised import raised_in
from rayhistory.diagnosis.rules.rule import Group, Match, Words

_ERRORS = ("ACTOR_DIED", "ACTOR_UNAVAILABLE")
_ENDS = (
    (re.compile(r"killed by `ray\.kill`"), "the program killed the actor with ray.kill()"),
    (re.compile(r"placement group was removed"), "the program removed the placement group of the actor"),
    (re.compile(r"exit_actor\(\) is called|requested to exit the actor"), "the actor had called exit_actor()"),
    (re.compile(r"all references to the actor were removed"), "the program no longer had a handle of the actor"),
)
_MAX_CHARS = 4_000


def match_ended_actor(failure: Failure) -> Match | None:
    """Match calls that failed because their actor had ended on purpose."""
    if failure.kind != "tasks" or failure.error_type not in _ERRORS:
        return None
    text = failure.text[-_MAX_CHARS:]
    cause = next((words for pattern, words in _ENDS if pattern.search(text)), None)
    if cause is None:
        return None
    name = failure.function.partition(".")[0]
    return Match(group=f"{failure.job_id} {name} {cause}", evidence=(failure.evidence(text),), cause=cause)


def describe_ended_actor(group: Group) -> Words:
    count = sum(root.count for root in group.roots)
    functions = dict.fromkeys(root.function for root in group.roots)
    name = next(iter(functions)) if len(functions) == 1 else group.first.function.partition(".")[0]
    followed = things(sum((failure.counts for failure in group.consequences), Counts()))
    frames = (raised.frame for failure in group.consequences if (raised := raised_in(failure)) and raised.frame)
    place = next((f" Its result was needed at {frame_place(frame)}." for frame in frames), "")
    return Words(
        headline=one_line(f"{plural(count, 'call')} of {name} failed, because {group.match.cause}"),
        detail=f"Failed because of it: {followed}.{place}" if followed else "",
        suggestion="Wait for the last results before the actor is ended, or catch ray.exceptions.RayActorError.",
    )
