"""Exceptions of functions that ran in a ray.util.multiprocessing.Pool."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import frame_place, one_line
from rayhistory.diagnosis.rules.exceptions.raised import match_exception, raised_in
from rayhistory.diagnosis.rules.rule import Group, Match, Words
from rayhistory.diagnosis.tracebacks import last_traceback, own_output

_LAST_FRAME = re.compile(
    r'File "[^"\n]*/ray/util/multiprocessing/pool\.py", line \d+, in [^\n]*\n +raise result\.underlying\n'
)


def match_pool(failure: Failure) -> Match | None:
    """Match a driver whose pool got the exception of a function as a result, and raised it again.

    For Ray, the task of this function succeeded.
    """
    frames = last_traceback(own_output(failure.text)).rpartition('\n  File "')
    if not _LAST_FRAME.search("".join(frames[1:])[:2_000]):
        return None
    return match_exception(failure, lambda raised, text: True)


def describe_pool(group: Group) -> Words:
    raised = raised_in(group.first)
    place = frame_place(raised.frame) if raised else ""
    return Words(
        headline=one_line(f"A function in a pool raised an exception: {raised}{f' ({place})' if place else ''}"),
        detail="The place is that of the call of the pool: ray.util.multiprocessing.Pool does not report where in the "
        "function the exception was raised.",
        suggestion="To see the whole traceback, catch the exception in the function, and print it.",
    )
