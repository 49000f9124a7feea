"""How long a step takes. A decode step: a + c * running requests + k * context tokens."""

from __future__ import annotations

import math
import random

from launcher.simulated.options import FP8_DTYPES, EngineOptions
from launcher.simulated.presets import Preset
from launcher.simulated.presets.schema import Noise

_SCHEDULING_SHARE = 0.02
"""Share of a decode step that is the scheduler's, which --num-continuous-decode-steps spreads (derived)."""


_DRIFT_EVERY_S = 300.0


class Pace:
    """Seconds of decode and prefill steps of one configuration, at full speed."""

    def __init__(self, preset: Preset, options: EngineOptions) -> None:
        pace = preset.pace
        fp8 = options.kv_cache_dtype in FP8_DTYPES
        ranks = preset.model.tp_size / options.tp_size
        saved = _SCHEDULING_SHARE * (1 - 1 / max(1, options.num_continuous_decode_steps))
        self._base_s = pace.decode_base_s * ranks * (1 - saved)
        self._request_s = pace.decode_per_request_s
        context_s = pace.decode_per_context_token_fp8_s if fp8 else pace.decode_per_context_token_s
        self._context_s = context_s * (ranks if preset.model.attention == "mha" else 1.0)
        self._eager = pace.eager_factor
        self._graph_max_batch = options.graph_max_batch
        self._prefill_base_s = pace.prefill_base_s
        self._prefill_token_s = pace.prefill_per_token_s * ranks
        self._prefill_context_s = pace.prefill_per_context_token_s

    def uses_graph(self, running: int) -> bool:
        return running <= self._graph_max_batch

    def decode_s(self, steps: int, running: int, context_tokens: int) -> float:
        """`steps` decode steps of an unchanged batch whose context grows by `running` tokens a step."""
        first = self._first_step_s(running, context_tokens)
        return self._factor(running) * (steps * first + self._context_s * running * steps * (steps - 1) / 2)

    def steps_within(self, seconds: float, running: int, context_tokens: int) -> int:
        """How many whole decode steps fit into `seconds`."""
        first = self._first_step_s(running, context_tokens)
        growth = self._context_s * running
        seconds /= self._factor(running)
        if growth <= 1e-15 * first:
            return int(seconds / first)
        half = first - growth / 2
        return int((math.sqrt(half * half + 2 * growth * seconds) - half) / growth)

    def prefill_s(self, new_tokens: int, context_tokens: int) -> float:
        """One prefill batch of `new_tokens` over `context_tokens` of cached context."""
        attention = self._prefill_context_s * context_tokens
        return self._prefill_base_s + self._prefill_token_s * new_tokens + attention

    def _first_step_s(self, running: int, context_tokens: int) -> float:
        return self._base_s + self._request_s * running + self._context_s * context_tokens

    def _factor(self, running: int) -> float:
        return 1.0 if self.uses_graph(running) else self._eager


class Wander:
    """How much slower than its preset one server life is: a constant factor and a slow drift around it."""

    def __init__(self, noise: Noise, chance: random.Random, factor: float) -> None:
        self._sd_share = noise.drift_sd_share
        self._chance = chance
        self._life = factor * max(0.5, chance.gauss(1.0, noise.start_sd_share))
        self._drift, self._until_s = 1.0, 0.0

    def slowness(self, now_s: float) -> float:
        """The factor on the time of a step that begins now. `now_s` must not go back."""
        while now_s >= self._until_s:
            self._until_s += _DRIFT_EVERY_S
            self._drift = max(0.5, self._chance.gauss(1.0, self._sd_share))
        return self._life * self._drift
