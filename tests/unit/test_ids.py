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
def test_an_id_has_one_spelling(value: object, size: int, expected: str | None) -> None:
    """base64 and hex become hex; nil, empty and anything of another size become nothing."""
    assert ids.to_hex(value, size) == expected


def test_a_task_id_names_its_actor_if_it_has_one() -> None:
    """The last 16 bytes, unless they are filler and a job."""
    assert ids.actor_of_task("27" * 8 + "28" * 12 + "01000000") == "28" * 12 + "01000000"
    assert ids.actor_of_task("27" * 8 + "ff" * 12 + "01000000") is None


GOOD = "cbEzoR4cRhz///////////////8BAAAA"


@pytest.mark.parametrize(
    "odd", [GOOD, "", None, 7, "/" * 32, "71" * 24, "é" + GOOD[1:], "=" + GOOD[1:], GOOD[:28] + "AA=="]
)
@pytest.mark.parametrize("size", [ids.TASK, ids.JOB])
def test_many_ids_are_what_each_of_them_is(odd: object, size: int) -> None:
    """Those of tasks are decoded all at once, unless one of them is not as usual."""
    many = [GOOD, odd, GOOD[::-1]]
    assert ids.hexes(many, size) == [ids.to_hex(one, size) for one in many]
    assert ids.hexes([], size) == []
