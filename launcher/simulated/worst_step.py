"""The memory of single steps: what a prefill or an eager decode asks for on top of the start-up's.

A step that asks for more than the headroom left after start-up is the OOM "under load" of SGLang: it
starts fine, answers /health, and dies of its first full prefill chunk (H200 captures at 0.98 and 0.985).
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.simulated.memory import GIB
from launcher.simulated.presets.schema import Transient


@dataclass(frozen=True, slots=True)
class Overflow:
    """The allocation that failed, in GiB."""

    tried_gib: float
    free_gib: float


class WorstStep:
    """Watches the headroom of one rank. `factor` is this life's fragmentation (1 is none)."""

    def __init__(self, transient: Transient, headroom_gib: float, *, tp_share: float, factor: float) -> None:
        self._transient = transient
        self._headroom_gib = headroom_gib
        self._tokens_gib = factor * tp_share / GIB
        self._peak_gib = 0.0

    @property
    def free_gib(self) -> float:
        """What the driver still shows as free: freed transients stay reserved by torch's allocator."""
        return max(0.0, self._headroom_gib - self._peak_gib)

    def prefill(self, new_tokens: int, requests: int) -> Overflow | None:
        """One prefill batch: hidden states, then the largest tensor, then what follows and the logits."""
        transient = self._transient
        before = transient.before_bytes_per_token * new_tokens * self._tokens_gib
        largest = transient.largest_bytes_per_token * new_tokens * self._tokens_gib
        after = transient.after_bytes_per_token * new_tokens * self._tokens_gib
        after += transient.logits_bytes_per_request * requests / GIB
        return self._ask(before, largest) or self._ask(before + largest, after)

    def decode(self, running: int, *, graph: bool) -> Overflow | None:
        """One decode step: logits, and without a graph the activations of every request."""
        logits = self._transient.logits_bytes_per_request * running / GIB
        eager = 0.0 if graph else self._transient.eager_bytes_per_request * running / GIB
        return self._ask(0.0, logits) or self._ask(logits, eager)

    def _ask(self, held_gib: float, wanted_gib: float) -> Overflow | None:
        self._peak_gib = max(self._peak_gib, min(held_gib + wanted_gib, self._headroom_gib))
        if held_gib + wanted_gib <= self._headroom_gib:
            return None
        return Overflow(wanted_gib, max(0.0, self._headroom_gib - held_gib))
