"""The LRU cache is bounded by cost and age."""

from rayhistory.lru import LruCache


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_least_recently_used_entry_is_dropped_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert len(cache) == 2


def test_entries_are_dropped_until_the_total_cost_fits() -> None:
    cache: LruCache[str, bytes] = LruCache(10, cost=len)
    cache.put("a", b"x" * 4)
    cache.put("b", b"x" * 4)
    cache.put("c", b"x" * 2)
    assert cache.total_cost == 10
    cache.put("d", b"x" * 7)
    assert [key in cache for key in "abcd"] == [False, False, True, True]
    assert cache.total_cost == 9


def test_entry_over_the_maximum_is_not_stored_and_drops_no_other() -> None:
    cache: LruCache[str, bytes] = LruCache(10, cost=len)
    cache.put("a", b"x" * 10)
    cache.put("b", b"x" * 11)
    assert cache.get("a") == b"x" * 10
    assert "b" not in cache
    assert cache.total_cost == 10


def test_entry_over_the_maximum_removes_the_value_it_replaces() -> None:
    cache: LruCache[str, bytes] = LruCache(10, cost=len)
    cache.put("a", b"x")
    cache.put("a", b"x" * 11)
    assert cache.get("a") is None
    assert (len(cache), cache.total_cost) == (0, 0)


def test_replaced_entry_counts_once_and_becomes_the_most_recent() -> None:
    cache: LruCache[str, bytes] = LruCache(10, cost=len)
    cache.put("a", b"x" * 4)
    cache.put("b", b"x" * 4)
    cache.put("a", b"y" * 6)
    assert (cache.get("a"), cache.total_cost, len(cache)) == (b"y" * 6, 10, 2)
    cache.put("c", b"x")
    assert [key in cache for key in "abc"] == [True, False, True]


def test_entry_expires_after_the_ttl() -> None:
    clock = Clock()
    cache: LruCache[str, int] = LruCache(10, ttl=5.0, clock=clock)
    cache.put("a", 1)
    clock.now += 4.9
    assert cache.get("a") == 1
    clock.now += 0.1
    assert "a" not in cache
    assert cache.get("a") is None
    assert (len(cache), cache.total_cost) == (0, 0)


def test_reading_an_entry_does_not_extend_its_life_and_replacing_it_does() -> None:
    clock = Clock()
    cache: LruCache[str, int] = LruCache(10, ttl=5.0, clock=clock)
    cache.put("read", 1)
    cache.put("replaced", 1)
    clock.now += 3.0
    cache.get("read")
    cache.put("replaced", 2)
    clock.now += 3.0
    assert (cache.get("read"), cache.get("replaced")) == (None, 2)


def test_ttl_of_an_entry_overrides_that_of_the_cache() -> None:
    clock = Clock()
    cache: LruCache[str, int] = LruCache(10, ttl=5.0, clock=clock)
    cache.put("short", 1, ttl=1.0)
    cache.put("long", 2, ttl=60.0)
    clock.now += 10.0
    assert (cache.get("short"), cache.get("long")) == (None, 2)


def test_entries_without_ttl_never_expire() -> None:
    clock = Clock()
    cache: LruCache[str, int] = LruCache(10, clock=clock)
    cache.put("a", 1)
    clock.now += 10**9
    assert cache.get("a") == 1


def test_pop_and_clear_release_the_cost() -> None:
    cache: LruCache[str, bytes] = LruCache(10, cost=len)
    cache.put("a", b"x" * 3)
    cache.put("b", b"x" * 4)
    assert cache.pop("a") == b"x" * 3
    assert cache.pop("a") is None
    assert cache.total_cost == 4
    cache.clear()
    assert (len(cache), cache.total_cost) == (0, 0)
