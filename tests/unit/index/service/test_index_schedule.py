"""Who is indexed next: visited sessions first, then running ones, namespaces in turn, and nobody starves."""

from collections import Counter

from rayhistory.index.service.index_schedule import Candidate, Identity, IndexSchedule


def identity(namespace: str, number: int) -> Identity:
    return namespace, f"c{number}", "session"


def candidates(counts: dict[str, int], *, old: bool = False, mark: str = "running") -> list[Candidate]:
    return [Candidate(identity(name, number), mark, old) for name, count in counts.items() for number in range(count)]


def schedule(*found: list[Candidate]) -> IndexSchedule:
    made = IndexSchedule()
    made.update([candidate for each in found for candidate in each], 0.0)
    return made


def turns(made: IndexSchedule, count: int, now: float = 0.0) -> list[Identity]:
    chosen = [made.next(now) for _ in range(count)]
    return [each for each in chosen if each is not None]


def test_namespaces_take_turns() -> None:
    made = schedule(candidates({"large": 100, "small": 3}))
    assert Counter(name for name, _, _ in turns(made, 6)) == {"large": 3, "small": 3}
    assert {name for name, _, _ in turns(made, 5)} == {"large"}


def test_visited_session_comes_first() -> None:
    made = schedule(candidates({"a": 50, "b": 50}))
    visited = identity("b", 49)
    assert made.next(0.0, [visited]) == visited


def test_session_that_waited_longest_is_next_in_its_namespace() -> None:
    made = schedule(candidates({"a": 3}))
    for number, due_at in enumerate((30.0, 10.0, 20.0)):
        made.done(identity("a", number), due_at)
    assert turns(made, 3, now=100.0) == [identity("a", number) for number in (1, 2, 0)]


def test_session_is_not_chosen_twice_while_it_is_indexed() -> None:
    made = schedule(candidates({"a": 1}))
    assert len(turns(made, 3)) == 1
    made.update(candidates({"a": 1}), 1.0)
    assert made.next(1.0) is None


def test_running_sessions_come_before_old_ones() -> None:
    made = schedule(candidates({"archive": 100}, old=True), candidates({"live": 5}))
    assert {name for name, _, _ in turns(made, 5)} == {"live"}


def test_old_sessions_are_indexed_while_running_ones_are_always_due() -> None:
    made = schedule(candidates({"archive": 100}, old=True), candidates({"live": 5}))
    old = 0
    for _ in range(80):
        chosen = made.next(0.0)
        assert chosen is not None
        old += chosen[0] == "archive"
        if chosen[0] == "live":
            made.done(chosen, 0.0)
    assert old == 10


def test_session_that_ends_is_due_at_once() -> None:
    made = schedule(candidates({"a": 1}))
    made.done(turns(made, 1)[0], 1000.0)
    made.update(candidates({"a": 1}), 1.0)
    assert made.next(1.0) is None
    made.update(candidates({"a": 1}, mark="ended"), 1.0)
    assert made.next(1.0) == identity("a", 0)


def test_removed_session_is_forgotten() -> None:
    made = schedule(candidates({"a": 2}))
    made.update(candidates({"a": 1}), 1.0)
    assert turns(made, 2, now=1.0) == [identity("a", 0)]


def test_next_due_time_is_that_of_the_first_free_session() -> None:
    made = schedule(candidates({"a": 2}))
    made.done(identity("a", 0), 7.0)
    made.done(identity("a", 1), 9.0)
    assert made.next_due_at() == 7.0
    assert made.next(8.0) == identity("a", 0)
    assert made.next_due_at() == 9.0
