"""Ids of Ray are converted to lower-case hex."""

import pytest

from rayhistory import ids


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        ("AQAAAA==", ids.JOB, "01000000"),
        ("01000000", ids.JOB, "01000000"),
        ("0A0000BB", ids.JOB, "0a0000bb"),
        ("/////w==", ids.JOB, None),
        ("", ids.JOB, None),
        (None, ids.JOB, None),
        (7, ids.JOB, None),
        ("AQAAAAA=", ids.JOB, None),
        ("cbEzoR4cRhz///////////////8BAAAA", ids.TASK, "71b133a11e1c461cffffffffffffffffffffffff01000000"),
    ],
)
def test_base64_and_hex_ids_are_converted_to_lower_case_hex(value: object, size: int, expected: str | None) -> None:
    """Nil, empty and malformed ids, and ids of another size, become None."""
    assert ids.to_hex(value, size) == expected


def test_actor_id_is_the_end_of_the_task_id() -> None:
    """None if these 16 bytes are only filler and a job id."""
    assert ids.actor_of_task("27" * 8 + "28" * 12 + "01000000") == "28" * 12 + "01000000"
    assert ids.actor_of_task("27" * 8 + "ff" * 12 + "01000000") is None


TASK_ID = "cbEzoR4cRhz///////////////8BAAAA"


@pytest.mark.parametrize(
    "value", [TASK_ID, "", None, 7, "/" * 32, "71" * 24, "é" + TASK_ID[1:], "=" + TASK_ID[1:], TASK_ID[:28] + "AA=="]
)
@pytest.mark.parametrize("size", [ids.TASK, ids.JOB])
def test_converting_many_ids_gives_the_same_as_one_by_one(value: object, size: int) -> None:
    """Task ids are decoded in one call, unless one of them is unusual."""
    many = [TASK_ID, value, TASK_ID[::-1]]
    assert ids.all_to_hex(many, size) == [ids.to_hex(one, size) for one in many]
    assert ids.all_to_hex([], size) == []
