"""Tracebacks as Ray stores them."""

import re

import pytest

from rayhistory.diagnosis.fingerprints import fingerprint
from rayhistory.diagnosis.tracebacks import TRACEBACK_HEADER, excerpt, own_output, parse_exception

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


def test_directory_of_a_file_does_not_change_the_fingerprint() -> None:
    """The same script is run where it is, and as a file of a job."""
    package = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1a2b"
    paths = ("/app/exceptions.py", "/home/me/jobs/exceptions.py", f"{package}/exceptions.py", "exceptions.py")
    assert len({fingerprint(TASK.replace("/app/exceptions.py", path)) for path in paths}) == 1


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


def long_traceback(libraries: int, own: int = 2, message: str = "broken") -> str:
    def frame(file: str, number: int) -> str:
        return f'  File "{file}", line {number}, in step{number}\n    call({number})\n    ^^^^^^^^\n'

    user = "".join(frame("/app/train.py", number) for number in range(1, own + 1))
    library = "".join(frame("/x/site-packages/torch/nn.py", number) for number in range(100, 100 + libraries))
    return f"Traceback (most recent call last):\n{user}{library}ValueError: {message}\n"


def test_short_traceback_is_shown_whole() -> None:
    text = long_traceback(2)
    assert excerpt(text, 20) == text


def test_excerpt_has_fewer_lines_if_they_are_long() -> None:
    text = excerpt(long_traceback(60), 100, 1_000)
    assert len(text) <= 1_000
    assert text.startswith("Traceback")
    assert text.endswith("ValueError: broken")
    assert '  File "/app/train.py", line 2, in step2' in text


@pytest.mark.parametrize(("libraries", "own", "message"), [(60, 2, "broken"), (1, 60, "broken"), (9, 9, "x\n" * 99)])
def test_excerpt_of_a_long_traceback_has_its_beginning_user_frames_and_end(
    libraries: int, own: int, message: str
) -> None:
    """The first version showed the last lines: frames of libraries."""
    lines = excerpt(long_traceback(libraries, own, message), 14).splitlines()
    assert len(lines) <= 14
    assert lines[:2] == ["Traceback (most recent call last):", '  File "/app/train.py", line 1, in step1']
    assert f'  File "/app/train.py", line {own}, in step{own}' in lines
    assert next(line for line in lines if line.startswith("ValueError: "))
    assert re.search(r"  … \d+ lines left out", "\n".join(lines))


def test_excerpt_of_several_tracebacks_has_the_last_one() -> None:
    text = long_traceback(20, message="first") + "some output\n" * 50 + long_traceback(2, message="last")
    lines = excerpt(text, 20).splitlines()
    assert len(lines) <= 20
    assert lines[0].startswith("Traceback")
    assert "ValueError: last" in lines
    assert "ValueError: first" not in lines


def test_excerpt_of_the_error_of_a_caller_has_the_frames_of_the_task() -> None:
    """Its last part has no header."""
    caller = long_traceback(30).replace("ValueError: broken\n", "ray.exceptions.RayTaskError(ValueError): ray::f()\n")
    text = caller + '  File "/app/task.py", line 9, in f\n    raise ValueError\nValueError: broken\n'
    lines = excerpt(text, 16).splitlines()
    assert '  File "/app/task.py", line 9, in f' in lines
    assert '  File "/app/train.py", line 1, in step1' in lines
    assert lines[-1] == "ValueError: broken"


def test_excerpt_of_other_text_is_its_end() -> None:
    assert excerpt("\n".join(map(str, range(100))), 3) == "97\n98\n99"
    assert excerpt("x" * 5_000, 3, 1_000) == "x" * 1_000


def test_excerpt_of_output_long_after_a_traceback_is_its_end() -> None:
    """The program caught the exception and continued."""
    text = "output\n" * 5 + long_traceback(9) + "".join(f"line {number}\n" for number in range(30))
    assert excerpt(text, 5) == "\n".join(f"line {number}" for number in range(25, 30))


def test_excerpt_of_hostile_text_takes_no_time() -> None:
    for text in (*("\n", '  File "a", line 1, in b\n', "Traceback (most recent call last):\n"), "(" * 1_000):
        assert len(excerpt(text * (64_000 // len(text)), 20).splitlines()) <= 20


RETRIED = (
    "(raylet) Task consume failed. There are 2 retries remaining, so the task will be retried. Error: User exception:\n"
)


@pytest.mark.parametrize(
    ("error", "after"),
    [
        ("x" * 460 + "\nValueError: the end of 500 characters\n", "exiting\n"),
        (' File "/app/a.py"\nValueError: a short error\n', "exiting\n"),
        ("ValueError: bad\x1b[32m [repeated 7x across cluster] (Ray deduplicates logs)\x1b[0m\n", "exiting\n"),
        ("ValueError: bad\n", f"{TRACEBACK_HEADER}\n  File ...\nKeyError: 1\n"),
    ],
)
def test_errors_of_retried_tasks_are_not_the_drivers(error: str, after: str) -> None:
    if len(error) > 400:
        error = "y" * (500 - len(error) + 1) + error
    assert own_output(f"starting\n{RETRIED}{error}{after}") == f"starting\n{after}"


def test_other_errors_of_retried_tasks_have_one_line() -> None:
    line = RETRIED.replace("User exception:", "RPC error: Socket closed")
    assert own_output(f"{line}3 rows are bad\n") == "3 rows are bad\n"
