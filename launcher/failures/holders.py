"""Whether somebody else held the memory that ran out: then the configuration has shown nothing."""

from __future__ import annotations

from launcher.failure import FailureNumbers
from launcher.failures.evidence import Evidence
from launcher.failures.numbers import foreign_holders
from launcher.failures.story import Message, Story
from launcher.gpus import GpuSample
from launcher.logs import Step

FOREIGN_SHARE = 0.05
"""Of the GPU: contexts of our own helpers (tokenizer with CUDA IPC, the parent) stay below it."""
EMPTY_SHARE = 0.80
"""An empty GPU shows more than this of its memory as free before weights, contexts and NCCL buffers taken off."""
_TOTAL_UNKNOWN_GIB = 40.0


def find_holder(message: Message, story: Story, evidence: Evidence, numbers: FailureNumbers) -> str | None:
    """A sentence's end that names who holds the GPU's memory beside the failed server; None when nobody is known to."""
    total_gib = numbers.gpu_total_gib
    limit_gib = FOREIGN_SHARE * (total_gib or _TOTAL_UNKNOWN_GIB)
    others = [holder for holder in foreign_holders(message.text) if holder.used_gib > limit_gib]
    if others:
        return ", ".join(f"process {holder.pid} holds {holder.used_gib:.1f} GiB" for holder in others)
    return _seen_by_driver(evidence) or _free_too_little(story, total_gib)


def _seen_by_driver(evidence: Evidence) -> str | None:
    """What the driver's process list shows, where its pids are ours to compare: in a container they may be the host's,
    and then every process of our own looks like a stranger. One pid of ours in the list proves that they are not."""
    listed = {process.pid for gpu in evidence.gpus for process in gpu.processes}
    if not listed & evidence.own_pids:
        return None
    found = [line for gpu in evidence.gpus for line in _strangers(gpu, evidence.own_pids)]
    return ", ".join(found) or None


def _strangers(gpu: GpuSample, own_pids: frozenset[int]) -> list[str]:
    total = gpu.memory_total_bytes
    return [
        f"process {process.pid} ({process.name or '?'}) holds {process.used_bytes / 2**30:.1f} GiB of GPU {gpu.index}"
        for process in gpu.processes
        if process.pid not in own_pids and total and process.used_bytes and process.used_bytes > FOREIGN_SHARE * total
    ]


def _free_too_little(story: Story, total_gib: float | None) -> str | None:
    """Little was free before the first byte of weights."""
    begun = [m.facts["available_gib"] for m in story.milestones if m.step is Step.WEIGHTS_BEGIN and m.facts]
    if total_gib is None or not begun or min(begun) > EMPTY_SHARE * total_gib:
        return None
    return f"only {min(begun):.1f} of {total_gib:.1f} GiB were free before the weights"
