"""Whether the host pool of HiCache fits: cgroup, ranks and version decide, not the GPU.

Facts (SGLang): `--hicache-size` is decimal GB *per rank*; 10 GiB always stay reserved. Up to 0.5.18 each rank
compares its own request with the whole machine, so all pass and the kernel kills: the sum must fit. From 0.5.19 the
budget is divided by the ranks but re-read while peers are pinning, so up to 1 / (2 * ranks - 1) surely fits and up to
1 / ranks usually does. Up to 0.5.14 the host pool must hold more tokens than the device pool (an assertion).
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.space import version_key

RESERVED_BYTES = 10 * 2**30
GB = 10**9


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The memory a container may really take, and how many ranks share it (per NUMA node where ranks are bound)."""

    available_bytes: int
    """The smaller of MemAvailable and what the cgroup leaves."""
    ranks: int
    sglang_version: str | None = None
    numa_available_bytes: int | None = None
    """Of the poorest NUMA node, when each rank is bound to one; its share of the ranks is `ranks_per_numa`."""
    ranks_per_numa: int = 0

    @property
    def sure_gb(self) -> float:
        """Decimal GB per rank that fit whatever the order of pinning."""
        racing = self._known_version is not None and self._known_version >= (0, 5, 19)
        return self._share_gb(2 * self.ranks - 1) if racing else self.likely_gb

    @property
    def likely_gb(self) -> float:
        """Decimal GB per rank that fit when all ranks together must fit."""
        whole = self._share_gb(self.ranks)
        if self.numa_available_bytes is None or self.ranks_per_numa < 1:
            return whole
        return min(whole, max(0.0, self.numa_available_bytes / self.ranks_per_numa / GB))

    @property
    def needs_more_than_device(self) -> bool:
        """SGLang up to 0.5.14 asserts that the host pool holds more tokens than the device pool."""
        return self._known_version is not None and self._known_version < (0, 5, 15)

    @property
    def _known_version(self) -> tuple[int, ...] | None:
        return version_key(self.sglang_version) if self.sglang_version else None

    def _share_gb(self, shares: int) -> float:
        return max(0.0, (self.available_bytes - RESERVED_BYTES) / max(1, shares) / GB)


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """What earlier starts showed: sizes per rank that were pinned, and sizes that failed."""

    largest_survived_gb: float = 0.0
    smallest_failed_gb: float | None = None


def host_survival(hicache_size_gb: int, host: HostMemory | None, seen: HostEvidence, *, device_pool_gb: float) -> float:
    """P(the host pool of `hicache_size_gb` per rank can be pinned), given what is known of the host."""
    if hicache_size_gb == 0 or hicache_size_gb <= seen.largest_survived_gb:
        return 1.0
    if seen.smallest_failed_gb is not None and hicache_size_gb >= seen.smallest_failed_gb:
        return 0.0
    if host is None:
        return 0.9
    if host.needs_more_than_device and hicache_size_gb <= device_pool_gb:
        return 0.0
    if hicache_size_gb <= 0.9 * host.sure_gb:
        return 0.995
    if hicache_size_gb <= host.sure_gb:
        return 0.95
    return 0.7 if hicache_size_gb <= 0.95 * host.likely_gb else 0.02
