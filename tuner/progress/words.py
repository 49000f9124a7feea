"""Settings, rates and stages in few words, the same on every screen and in every report."""

from __future__ import annotations

from tuner.journal.view import Incumbent
from tuner.trial import Interval, LevelResult, Setting

VAGUE_SHARE = 0.25
"""Of a rate: an interval that reaches further than this tells settings apart by luck. Levels aim at 3%."""
_SHORT = {"bfloat16": "bf16"}


def setting_words(setting: Setting) -> str:
    """`0.880 bf16 hicache 48 GB max-total-tokens=2048`."""
    parts = [] if setting.mem_fraction_static is None else [f"{setting.mem_fraction_static:.3f}"]
    parts.append(_SHORT.get(setting.kv_cache_dtype, setting.kv_cache_dtype))
    if setting.hicache_size_gb:
        parts.append(f"hicache {setting.hicache_size_gb} GB")
    parts += [f"{name}={value}" for name, value in setting.flags.items()]
    return " ".join(parts)


def rate_words(rate: Interval) -> str:
    """`1,213 tokens/s (1,180 to 1,246)`, with as many digits as the rate deserves."""
    digits = 0 if rate.value >= 100 else 1
    low, high = (f"{bound:,.{digits}f}" for bound in (rate.low, rate.high))
    return f"{rate.value:,.{digits}f} tokens/s ({low} to {high})"


def doubt_words(rate: Interval) -> str | None:
    """The sentence for a rate that is too vague to choose by; None for one that is known well enough."""
    if rate.half_width <= VAGUE_SHARE * rate.value:
        return None
    share = f"±{rate.half_width / rate.value:.0%}" if rate.value > 0 else "not at all"
    return (
        f"this rate is hardly known ({share}), so the choice rests on luck:"
        " its levels were too short for these answers; give a larger --budget or search less"
    )


def best_words(best: Incumbent) -> str:
    return f"{setting_words(best.setting)} at concurrency {best.concurrency}: {rate_words(best.completion_rate)}"


def level_words(level: LevelResult) -> str:
    """One measured level in a line."""
    words = f"concurrency {level.concurrency}: {rate_words(level.completion_rate)}"
    if level.running_requests is not None and level.token_usage_share is not None:
        words += f", {level.running_requests:.0f} running, token usage {level.token_usage_share:.2f}"
    return f"{words} [{level.end.value}]" + (f"; {level.doubt}" if level.doubt else "")
