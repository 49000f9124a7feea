"""The prefix cache (radix tree) and its host tier, in tokens: keys stand for runs of tokens.

A prompt is a sequence of (key, tokens) segments; equal leading segments share nodes. As in SGLang's
RadixCache and HiRadixCache (0.5.17): nodes that a running request uses are locked; the rest is evictable,
least recently used leaf first; with a host tier, nodes are copied to the host (write-through: when
inserted) and stay matchable there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

Segment = tuple[int, int]
"""(key, tokens)."""

LOAD_BACK_MIN_TOKENS = 10
"""Fewer host tokens are not worth a load (SGLang: load_back_threshold)."""


@dataclass(slots=True, eq=False)
class Node:
    """One segment in the tree."""

    key: int
    tokens: int
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    locks: int = 0
    hits: int = 0
    stamp: int = 0
    on_device: bool = True
    on_host: bool = False

    def has_device_child(self) -> bool:
        return any(child.on_device for child in self.children.values())


@dataclass(frozen=True, slots=True)
class HostTier:
    """The host pool of one server."""

    capacity_tokens: int
    write_policy: str
    """write_through, write_through_selective or write_back."""

    @property
    def hits_needed(self) -> int:
        return 1 if self.write_policy == "write_through" else 2


@dataclass(slots=True)
class CacheCounters:
    evicted_tokens: int = 0
    load_back_tokens: int = 0
    backup_tokens: int = 0
    dropped_tokens: int = 0
    """Backups for which the host pool had no room."""


class RadixCache:
    """Device and host tier. `locked_tokens` and `evictable_tokens` are device tokens held by the tree."""

    def __init__(self, host: HostTier | None = None, *, enabled: bool = True) -> None:
        self._root = Node(key=0, tokens=0, parent=None, locks=1)
        self._host = host
        self._enabled = enabled
        self._ticks = count(1)
        self._device_heap: list[tuple[int, int, Node]] = []
        self._host_heap: list[tuple[int, int, Node]] = []
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.host_used_tokens = 0
        self.counters = CacheCounters()

    def match(self, segments: Sequence[Segment], limit_tokens: int) -> tuple[list[Node], int]:
        """The nodes that hold the longest known prefix, and how many of their tokens are on the host only.

        At most `limit_tokens` are matched: a prompt's last token is always computed.
        """
        path: list[Node] = []
        node, tokens, host_tokens = self._root, 0, 0
        for key, size in segments if self._enabled else ():
            child = node.children.get(key)
            if child is None or child.tokens != size or tokens + size > limit_tokens:
                break
            tokens += size
            host_tokens += 0 if child.on_device else size
            path.append(child)
            node = child
        return self._without_short_host_tail(path, host_tokens)

    def _without_short_host_tail(self, path: list[Node], host_tokens: int) -> tuple[list[Node], int]:
        if 0 < host_tokens < LOAD_BACK_MIN_TOKENS:
            return [node for node in path if node.on_device], 0
        return path, host_tokens

    def lock(self, path: Iterable[Node]) -> None:
        """Lock a path; nodes that lay on the host only are loaded back and then hold device tokens."""
        for node in path:
            node.stamp = next(self._ticks)
            if not node.on_device:
                node.on_device = True
                self.counters.load_back_tokens += node.tokens
                self.evictable_tokens += node.tokens
            if node.locks == 0:
                self.evictable_tokens -= node.tokens
                self.locked_tokens += node.tokens
            node.locks += 1

    def unlock(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            node.locks -= 1
            if node.locks == 0:
                self.locked_tokens -= node.tokens
                self.evictable_tokens += node.tokens
                self._offer_device(node)

    def insert(self, segments: Sequence[Segment], path: list[Node]) -> list[Node]:
        """Put computed segments behind a locked `path`; returns the longer, locked path.

        The tree now accounts for them. Where another request had inserted the same meanwhile, its copy is
        the one that stays, and the caller's counts as freed.
        """
        longer = list(path)
        node = path[-1] if path else self._root
        for key, size in segments:
            child = node.children.get(key)
            if child is not None and child.tokens == size and child.on_device:
                self.lock((child,))
            elif child is not None and child.tokens == size:
                self._adopt(child)
            else:
                child = self._grow(node, key, size)
            self._count_hit(child)
            longer.append(child)
            node = child
        for seen in path:
            self._count_hit(seen)
        return longer

    def _grow(self, parent: Node, key: int, size: int) -> Node:
        stale = parent.children.get(key)
        if stale is not None:
            key = -next(self._ticks)  # the same key with another length: kept apart, never matched by it
        child = Node(key=key, tokens=size, parent=parent, locks=1, stamp=next(self._ticks))
        parent.children[key] = child
        self.locked_tokens += size
        return child

    def _adopt(self, node: Node) -> None:
        """The tokens of a host-only node were computed again: they are on the device now."""
        node.on_device, node.stamp, node.locks = True, next(self._ticks), node.locks + 1
        self.locked_tokens += node.tokens

    def evict(self, tokens: int) -> int:
        """Free at least `tokens` device tokens if there are that many evictable; returns what was freed."""
        freed = 0
        while freed < tokens and self._device_heap:
            stamp, _, node = heapq.heappop(self._device_heap)
            if stamp == node.stamp and self._is_device_leaf(node):
                freed += node.tokens
                self._evict_node(node)
        return freed

    def flush(self) -> None:
        """Forget everything that is not locked, on both tiers."""
        self.evict(self.evictable_tokens)
        self._evict_host(self.host_used_tokens)

    def _evict_node(self, node: Node) -> None:
        self.evictable_tokens -= node.tokens
        self.counters.evicted_tokens += node.tokens
        if self._host is not None and self._host.write_policy == "write_back" and not node.on_host:
            self._back_up(node)
        node.on_device = False
        parent = node.parent
        if node.on_host:
            self._offer_host(node)
        else:
            self._remove(node)
        if parent is not None:
            self._offer_device(parent)

    def _remove(self, node: Node) -> None:
        """Take a node out of the tree, with the host-only nodes below it, which are out of reach now."""
        for child in list(node.children.values()):
            if child.on_host:
                self.host_used_tokens -= child.tokens
                child.on_host = False
            self._remove(child)
        if node.parent is not None:
            node.parent.children.pop(node.key, None)
            node.parent = None

    def _is_device_leaf(self, node: Node) -> bool:
        return node.on_device and node.locks == 0 and node is not self._root and not node.has_device_child()

    def _offer_device(self, node: Node) -> None:
        if self._is_device_leaf(node):
            heapq.heappush(self._device_heap, (node.stamp, next(self._ticks), node))

    def _offer_host(self, node: Node) -> None:
        heapq.heappush(self._host_heap, (node.stamp, next(self._ticks), node))

    def _count_hit(self, node: Node) -> None:
        node.hits += 1
        host = self._host
        if host is None or node.on_host or host.write_policy == "write_back":
            return
        if node.hits >= host.hits_needed:
            self._back_up(node)

    def _back_up(self, node: Node) -> None:
        assert self._host is not None
        missing = self.host_used_tokens + node.tokens - self._host.capacity_tokens
        if missing > 0 and self._evict_host(missing) < missing:
            self.counters.dropped_tokens += node.tokens
            return
        node.on_host = True
        self.host_used_tokens += node.tokens
        self.counters.backup_tokens += node.tokens

    def _evict_host(self, tokens: int) -> int:
        """Only nodes that left the device may leave the host (as SGLang's evict_host), leaves first."""
        freed = 0
        while freed < tokens and self._host_heap:
            stamp, _, node = heapq.heappop(self._host_heap)
            if stamp != node.stamp or node.on_device or not node.on_host or node.children:
                continue
            freed += node.tokens
            node.on_host = False
            self.host_used_tokens -= node.tokens
            parent = node.parent
            self._remove(node)
            if parent is not None and parent.on_host and not parent.on_device:
                self._offer_host(parent)
        return freed
