"""All rules in the order in which they are tried on a message: the first that matches names it.

The order is from words that can mean only one thing to words that mean many: a peer's death before everything that
quotes it, host memory before the GPU's (pinning fails with "CUDA error"), limits of kernels before "out of memory",
causes before the wrapper "Capture cuda graph failed".
"""

from __future__ import annotations

from launcher.failures.rule import Rule
from launcher.failures.rules import collectives, gpu_memory, hangs, host_memory, kernels, kv_pool, setup

ORDERED: tuple[Rule, ...] = (
    *setup.FIRST,
    *collectives.RULES,
    *hangs.RULES,
    *host_memory.RULES,
    *kv_pool.RULES,
    *kernels.SPECIFIC,
    *gpu_memory.RULES,
    *kernels.GENERAL,
    *collectives.LAST,
    *setup.LAST,
    *kernels.LAST,
)

__all__ = ["ORDERED"]
