"""Ranges of tasks that follow from the markers in a worker's output."""

from rayhistory.logs.worker_markers import Range, TaskOutput, find_markers, infer_ranges

JOB = b":job_id:01000000\n"


def ranges(text: bytes, *outputs: TaskOutput) -> list[Range | None]:
    return infer_ranges(outputs, find_markers(text, 0), len(text))


def read(text: bytes, *outputs: TaskOutput) -> list[bytes | None]:
    return [found and text[found[0] : found[1]] for found in ranges(text, *outputs)]


def test_output_lies_between_the_marker_of_the_task_and_the_next_one() -> None:
    text = JOB + b":task_name:load\nloaded\n:task_name:train\ntrained\n"
    assert read(text, TaskOutput("load"), TaskOutput("train")) == [b"loaded\n", b"trained\n"]


def test_attempts_of_the_same_name_are_told_apart_by_their_order() -> None:
    text = JOB + b":task_name:load\n1\n:task_name:load\n:task_name:load\n3\n"
    assert read(text, *[TaskOutput("load")] * 3) == [b"1\n", b"", b"3\n"]


def test_known_end_gives_the_start() -> None:
    text = JOB + b":task_name:load\n1\n:task_name:load\n2\n:task_name:load\n3\n"
    second = text.index(b"2") + 2
    assert read(text, TaskOutput("load", end=second)) == [b"2\n"]


def test_range_is_not_inferred_if_tasks_of_the_same_name_are_unknown() -> None:
    text = JOB + b":task_name:load\n1\n:task_name:load\n2\n:task_name:save\n3\n"
    assert read(text, TaskOutput("load"), TaskOutput("save")) == [None, b"3\n"]


def test_unknown_task_of_another_name_does_not_add_to_the_output() -> None:
    text = JOB + b":task_name:load\n1\n:task_name:lost\n2\n:task_name:save\n3\n"
    assert read(text, TaskOutput("load"), TaskOutput("save")) == [b"1\n", b"3\n"]


def test_output_without_newline_ends_before_the_marker_on_its_line() -> None:
    text = JOB + b":task_name:load\n50 %:task_name:save\n"
    assert read(text, TaskOutput("load"), TaskOutput("save")) == [b"50 %", b""]


def test_marker_inside_a_line_of_output_is_output() -> None:
    text = JOB + b":task_name:load\nsee :task_name:other\n"
    assert read(text, TaskOutput("load")) == [b"see :task_name:other\n"]


def test_parentheses_of_a_name_are_not_in_its_marker() -> None:
    assert TaskOutput.marker("load()") == "load"


def test_running_task_and_task_that_lost_its_worker_have_no_end() -> None:
    text = JOB + b":task_name:load\n1\n"
    start = len(JOB + b":task_name:load\n")
    assert ranges(text, TaskOutput("load", has_ended=False)) == [(start, None)]
    assert ranges(text, TaskOutput("load", ended_by_worker=False)) == [(start, None)]


def test_report_of_a_crash_is_output_of_the_task_that_crashed_and_of_no_other() -> None:
    """Ray's workers crash at times when they exit, long after their last task."""
    crash = b"*** SIGABRT received at time=1795013259 on cpu 0 ***\nFatal Python error: Aborted\n"
    text = JOB + b":task_name:load\n1\n" + crash
    assert read(text, TaskOutput("load")) == [b"1\n"]
    assert read(text, TaskOutput("load", ended_by_worker=False)) == [b"1\n" + crash]
    printed = JOB + b":task_name:load\nFatal Python error: printed\n:task_name:save\n2\n"
    assert read(printed, TaskOutput("load"), TaskOutput("save")) == [b"Fatal Python error: printed\n", b"2\n"]


def test_worker_that_becomes_an_actor_ends_the_output_of_its_last_task() -> None:
    text = JOB + b":task_name:load\n1\n:actor_name:Trainer\nready\n"
    assert read(text, TaskOutput("load")) == [b"1\n"]


def test_recorded_task_of_an_actor_starts_at_the_end_of_the_one_before() -> None:
    text = JOB + b":actor_name:Trainer\none\ntwo\n"
    first, second = text.index(b"two"), len(text)
    assert read(text, TaskOutput(None, end=first), TaskOutput(None, end=second)) == [b"one\n", b"two\n"]


def test_task_without_marker_has_no_range() -> None:
    assert ranges(b"", TaskOutput("load")) == [None]
    assert ranges(JOB, TaskOutput("load", end=900), TaskOutput(None, end=900)) == [None, None]


def test_marker_keeps_its_offset_in_a_later_block() -> None:
    (marker,) = find_markers(b"x\n:task_name:load\n", 100)
    assert (marker.begin, marker.end, marker.task_name, marker.at_line_start) == (102, 118, "load", True)
