"""`kvtune-auto plan`: a table of fractions and dtypes, computed without touching a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.failure import Stage
from launcher.timeline import MemorySeen, Timeline
from tuner.memory.geometry import read_geometry
from tuner.memory.host import HostMemory
from tuner.memory.learning import learn_memory
from tuner.memory.model import MemoryPrediction
from tuner.memory.prior import MemoryPrior
from tuner.trial import Proposal, Purpose, Setting, TrialResult, TrialState

PLAN_FRACTIONS = (0.80, 0.82, 0.84, 0.85, 0.86, 0.87, 0.88, 0.89, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95)


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the plan. Tokens of one DP rank; GiB of the poorest rank."""

    mem_fraction_static: float
    kv_cache_dtype: str
    tokens: float
    tokens_sd: float
    headroom_gib: float
    headroom_sd_gib: float
    survival: float
    """Chance of surviving every stage, the load included."""
    weakest_stage: Stage
    """Where it would most likely die."""


def plan_table(
    model_path: Path | None,
    gpu_total_gib: float | None,
    *,
    tp_size: int = 1,
    kv_cache_dtypes: Sequence[str] = ("bfloat16",),
    fractions: Sequence[float] = PLAN_FRACTIONS,
    chunk_tokens: int | None = None,
    hicache_size_gb: int = 0,
    host: HostMemory | None = None,
    started: MemorySeen | None = None,
    started_fraction: float | None = None,
) -> tuple[PlanRow, ...]:
    """Rows by dtype, then fraction. `started` is what one start's log showed (`launcher.logs.read_timeline`).

    With the config alone B, W and the overhead are a prior and the standard deviations are wide; with one start they
    are exact. Raises StudyFileError for a config.json that cannot be read.
    """
    geometry = read_geometry(model_path) if model_path is not None else None
    prior = MemoryPrior(geometry, gpu_total_gib, tp_size, chunk_tokens=chunk_tokens, host=host)
    model = learn_memory(prior, _history(started, started_fraction, kv_cache_dtypes[0]))
    return tuple(
        _row(fraction, dtype, model.predict(Setting(fraction, dtype, hicache_size_gb)))
        for dtype in kv_cache_dtypes
        for fraction in fractions
    )


def _row(fraction: float, dtype: str, predicted: MemoryPrediction) -> PlanRow:
    return PlanRow(
        mem_fraction_static=fraction,
        kv_cache_dtype=dtype,
        tokens=predicted.tokens,
        tokens_sd=predicted.tokens_sd,
        headroom_gib=predicted.headroom_gib,
        headroom_sd_gib=predicted.headroom_sd_gib,
        survival=predicted.survival_probability,
        weakest_stage=min(predicted.survival, key=lambda stage: predicted.survival[stage]),
    )


def _history(started: MemorySeen | None, fraction: float | None, asked_dtype: str) -> tuple[TrialResult, ...]:
    """The one start as a trial, so that there is one way to learn."""
    if started is None:
        return ()
    setting = Setting(fraction, started.kv_cache_dtype or asked_dtype)
    proposal = Proposal(setting, (), Purpose.FIRST, "the start whose log was given", 0.0)
    return (TrialResult(0, proposal, TrialState.MEASURED, Timeline(memory=started)),)
