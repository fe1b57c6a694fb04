"""The order of test files: no worker waits for a recording while there is other work."""

from support.run_order import FileToRun, in_order


def file(name: str, *recordings: str, ray: bool = False) -> FileToRun[str]:
    return FileToRun([name], ray, set(recordings))


def names(*files: FileToRun[str]) -> list[str]:
    return [name for file in in_order(files) for name in file.items]


def test_first_files_record_and_the_next_ones_need_no_recording() -> None:
    archives = [file(f"archive {number}", "uncollected") for number in range(3)]
    browsers = [file(f"browser {number}", "recorded") for number in range(9)]
    faults = [file(f"faults {number}") for number in range(9)]
    rays = [file("own", ray=True), file("compare", "recorded", ray=True), file("clients", "recorded", ray=True)]
    found = names(*rays, *archives, *browsers, *faults)
    assert found[:9] == [
        "compare", "faults 0", "archive 0", "faults 1", "own", "faults 2", "clients", "faults 3", "archive 1",
    ]  # fmt: skip
    assert len(set(found)) == len(found) == 24


def test_files_that_start_ray_alternate_with_others() -> None:
    rays = [file(f"ray {number}", ray=True) for number in range(3)]
    assert names(*rays, file("a"), file("b")) == ["ray 0", "a", "ray 1", "b", "ray 2"]


def test_order_of_other_files_stays() -> None:
    assert names(file("a"), file("b", "recorded"), file("c", "recorded"), file("d")) == ["b", "a", "d", "c"]
    assert names(*(file(str(number)) for number in range(9))) == list("012345678")
