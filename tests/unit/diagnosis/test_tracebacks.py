"""Tracebacks as Ray stores them."""

import pytest

from rayhistory.diagnosis.fingerprints import fingerprint
from rayhistory.diagnosis.tracebacks import own_output, parse_exception

TASK = (
    "User exception:\n\x1b[36mray::parse()\x1b[39m (pid=13044, ip=127.0.0.1)\n"
    '  File "/app/exceptions.py", line 13, in parse\n    raise ValueError(number)\nValueError: record {} is broken'
)
DRIVER = (
    'Traceback (most recent call last):\n  File "/app/main.py", line 70, in <module>\n    ray.get(refs)\n'
    '  File "/opt/venv/lib/python3.11/site-packages/ray/worker.py", line 1053, in get_objects\n    raise value\n'
    "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::parse()\x1b[39m (pid=13044, ip=127.0.0.1)\n"
    '  File "/app/exceptions.py", line 13, in parse\n    raise ValueError(number)\nValueError: record 3 is broken\n'
)


def test_exception_has_its_type_message_and_last_user_frame() -> None:
    raised = parse_exception(TASK.format(3))
    assert raised and str(raised) == "ValueError: record 3 is broken"
    assert str(raised.frame) == "/app/exceptions.py:13 in parse"


def test_driver_and_task_have_the_same_fingerprint() -> None:
    assert fingerprint(DRIVER) == fingerprint(TASK.format(3)) == fingerprint(TASK.format(4711))


def test_other_frame_or_type_is_another_fingerprint() -> None:
    prints = {
        fingerprint(text) for text in (TASK, TASK.replace("ValueError", "KeyError"), TASK.replace("parse", "load"))
    }
    assert len(prints) == 3


def test_frames_of_libraries_are_no_user_frames() -> None:
    raised = parse_exception(
        'Traceback\n  File "/app/a.py", line 1, in main\n    f()\n'
        '  File "/x/site-packages/numpy/core.py", line 9, in dot\n    g()\nTypeError: bad'
    )
    assert raised and raised.frame and raised.frame.function == "main"


def test_forwarded_output_of_workers_is_not_the_drivers() -> None:
    text = "\x1b[36m(crash pid=7850)\x1b[0m Fatal Python error: Segmentation fault\nmy own line\n(raylet) something\n"
    assert own_output(text).split("\n") == ["", "my own line", "", ""]


@pytest.mark.parametrize("text", ["", "no traceback", "x" * 10_000_000, '  File "', "\n" * 100_000, "(" * 100_000])
def test_hostile_text_has_no_exception_and_takes_no_time(text: str) -> None:
    assert parse_exception(text) is None
    assert len(fingerprint(text)) == 16
    own_output(text)
