"""The prefix cache keeps its books, whatever is done to it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from launcher.simulated.radix import HostTier, Node, RadixCache

DEVICE_TOKENS = 400


def _put(cache: RadixCache, *segments: tuple[int, int]) -> list[Node]:
    path, _ = cache.match(segments, sum(size for _, size in segments))
    cache.lock(path)
    return cache.insert(segments[len(path) :], path)


def test_a_shared_prefix_is_found_and_the_last_token_is_computed() -> None:
    cache = RadixCache()
    cache.unlock(_put(cache, (1, 100), (2, 50)))
    path, host = cache.match(((1, 100), (3, 20)), 119)
    assert ([node.tokens for node in path], host) == ([100], 0)
    assert cache.match(((1, 100),), 99)[0] == []


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = RadixCache()
    for key in (1, 2, 3):
        cache.unlock(_put(cache, (key, 100)))
    cache.unlock(_put(cache, (1, 100)))  # used again
    assert cache.evict(150) == 200
    assert [bool(cache.match(((key, 100),), 100)[0]) for key in (1, 2, 3)] == [True, False, False]


def test_locked_nodes_stay() -> None:
    cache = RadixCache()
    _put(cache, (1, 100))
    assert cache.evict(100) == 0


def test_write_through_survives_eviction_and_is_loaded_back() -> None:
    cache = RadixCache(HostTier(1000, "write_through"))
    cache.unlock(_put(cache, (1, 100)))
    cache.evict(100)
    path, host = cache.match(((1, 100), (2, 5)), 104)
    assert host == 100
    cache.lock(path)
    assert cache.counters.load_back_tokens == 100
    assert (cache.locked_tokens, cache.host_used_tokens) == (100, 100)


@pytest.mark.parametrize(("policy", "uses", "kept"), [
    ("write_through", 1, True), ("write_through_selective", 1, False), ("write_through_selective", 2, True),
    ("write_back", 1, True),
])  # fmt: skip
def test_write_policies(policy: str, uses: int, kept: bool) -> None:
    cache = RadixCache(HostTier(1000, policy))
    for _ in range(uses):
        cache.unlock(_put(cache, (1, 100)))
    backed_up_before = cache.counters.backup_tokens
    cache.evict(100)
    assert bool(cache.match(((1, 100),), 100)[0]) is kept
    assert (policy == "write_back") == (kept and backed_up_before == 0)


def test_a_full_host_drops_what_it_cannot_take() -> None:
    cache = RadixCache(HostTier(100, "write_through"))
    _put(cache, (1, 100))
    _put(cache, (2, 100))
    assert cache.counters.dropped_tokens == 100
    assert cache.host_used_tokens == 100


def test_ten_tokens_or_more_are_worth_a_load() -> None:
    cache = RadixCache(HostTier(1000, "write_through"))
    cache.unlock(_put(cache, (1, 9)))
    cache.evict(9)
    assert cache.match(((1, 9),), 9) == ([], 0)


def test_disabled_finds_nothing() -> None:
    cache = RadixCache(enabled=False)
    cache.unlock(_put(cache, (1, 100)))
    assert cache.match(((1, 100),), 100)[0] == []


class CacheMachine(RuleBasedStateMachine):
    """Random use against the invariants: nothing is counted twice, nothing is lost, the host never overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(HostTier(150, "write_through"))
        self.held: list[list[Node]] = []

    @rule(keys=st.lists(st.integers(1, 3), min_size=1, max_size=3), last=st.integers(10, 12))
    def use(self, keys: list[int], last: int) -> None:
        segments = [(key, 10 * key) for key in keys] + [(last, last)]
        room = DEVICE_TOKENS - self.cache.locked_tokens
        if sum(size for _, size in segments) > room:
            return
        self.held.append(_put(self.cache, *segments))
        self.cache.evict(self.cache.locked_tokens + self.cache.evictable_tokens - DEVICE_TOKENS)

    @rule()
    def release(self) -> None:
        if self.held:
            self.cache.unlock(self.held.pop(0))

    @rule(tokens=st.integers(1, 100))
    def evict(self, tokens: int) -> None:
        evictable = self.cache.evictable_tokens
        assert min(tokens, evictable) <= self.cache.evict(tokens) <= evictable

    @invariant()
    def books_balance(self) -> None:
        nodes = list(_walk(self.cache._root))
        assert self.cache.locked_tokens == sum(node.tokens for node in nodes if node.locks > 0)
        on_device = sum(node.tokens for node in nodes if node.on_device)
        assert self.cache.locked_tokens + self.cache.evictable_tokens == on_device
        assert self.cache.host_used_tokens == sum(node.tokens for node in nodes if node.on_host) <= 150
        assert all(node.on_device or node.on_host for node in nodes)


def _walk(node: Node) -> list[Node]:
    return [below for child in node.children.values() for below in (child, *_walk(child))]


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
