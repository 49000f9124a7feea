"""A start-up's timeline from its milestones: seconds and GiB of each stage, memory figures of the poorest rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from launcher.dtype import dtype_in_use
from launcher.errors import UsageError
from launcher.failure import Stage
from launcher.logs.line import Rank
from launcher.logs.milestone import Milestone, Step
from launcher.timeline import MemorySeen, StageSpan, Timeline

_QUARTER_S = 900.0
"""Time zones differ by whole quarters of an hour."""

_BEGINS: tuple[tuple[Stage, tuple[Step, ...], tuple[Step, ...]], ...] = (
    (Stage.WEIGHTS, (Step.WEIGHTS_BEGIN,), (Step.WEIGHTS_END,)),
    (Stage.KV_POOL, (Step.WEIGHTS_END,), (Step.POOL_END,)),
    (Stage.GRAPH_CAPTURE, (Step.POOL_END,), (Step.SUMMARY,)),
    (Stage.HOST_POOL, (Step.HOST_POOL,), (Step.CACHE_READY, Step.HTTP, Step.READY)),
    (Stage.WARM_UP, (Step.HTTP,), (Step.READY,)),
)
"""Each stage with the steps that begin and the steps that end it."""


def build_timeline(
    milestones: Sequence[Milestone], launched_s: float | None = None, sglang_version: str | None = None
) -> Timeline:
    """The timeline of one start. Seconds count from `launched_s`, or from the first stamp where that is not known.

    `launched_s` is unix time; stamps are local time without a zone, so the zone is found from their distance.
    """
    stamps = [milestone.stamp_s for milestone in milestones if milestone.stamp_s is not None]
    if not stamps:
        return Timeline(memory=_memory(milestones), sglang_version=sglang_version)
    zero_s = _zero(stamps[0], launched_s)
    ready_s = _when(milestones, (Step.READY,), zero_s, min)
    return Timeline(_spans(milestones, zero_s), _memory(milestones), sglang_version, ready_s)


def _zero(first_stamp_s: float, launched_s: float | None) -> float:
    """The launch on the clock of the stamps."""
    if launched_s is None:
        return first_stamp_s
    zone_s = round((first_stamp_s - launched_s) / _QUARTER_S) * _QUARTER_S
    return launched_s + zone_s


def _spans(milestones: Sequence[Milestone], zero_s: float) -> tuple[StageSpan, ...]:
    weights_s = _when(milestones, (Step.WEIGHTS_BEGIN,), zero_s, min)
    spans = [StageSpan(Stage.LAUNCH, 0.0, weights_s, None, _least(milestones, Step.WEIGHTS_BEGIN))]
    for stage, begins, ends in _BEGINS:
        begin_s = _when(milestones, begins, zero_s, min)
        if begin_s is None:
            continue
        end_s = next((at for step in ends if (at := _when(milestones, (step,), zero_s, max)) is not None), None)
        spans.append(StageSpan(stage, begin_s, end_s, _free(milestones, begins), _free(milestones, ends)))
    return tuple(spans)


def _when(
    milestones: Iterable[Milestone],
    steps: tuple[Step, ...],
    zero_s: float,
    pick: Callable[[list[float]], float],
) -> float | None:
    found = [m.stamp_s - zero_s for m in milestones if m.step in steps and m.stamp_s is not None]
    return max(0.0, pick(found)) if found else None


def _free(milestones: Sequence[Milestone], steps: tuple[Step, ...]) -> float | None:
    return next((free for step in steps if (free := _least(milestones, step)) is not None), None)


def _least(milestones: Iterable[Milestone], step: Step) -> float | None:
    """Free GiB of the poorest rank at the last time that each rank reached the step."""
    last: dict[Rank, float] = {}
    for milestone in milestones:
        if milestone.step is step and "available_gib" in milestone.facts:
            last[milestone.rank] = milestone.facts["available_gib"]
    return min(last.values(), default=None)


def _first(milestones: Iterable[Milestone], step: Step) -> float | None:
    """Free GiB of the poorest rank at the first time: draft models load after the target."""
    first: dict[Rank, float] = {}
    for milestone in milestones:
        if milestone.step is step and "available_gib" in milestone.facts:
            first.setdefault(milestone.rank, milestone.facts["available_gib"])
    return min(first.values(), default=None)


def _summed(milestones: Iterable[Milestone], step: Step, fact: str) -> float | None:
    """The sum of one rank's figures (several pools, several captures), of the rank with the most."""
    sums: dict[Rank, float] = {}
    for milestone in milestones:
        if milestone.step is step and fact in milestone.facts:
            sums[milestone.rank] = sums.get(milestone.rank, 0.0) + milestone.facts[fact]
    return max(sums.values(), default=None)


def _memory(milestones: Sequence[Milestone]) -> MemorySeen:
    capacity = _smallest(milestones, Step.SUMMARY, "capacity_tokens")
    if capacity is None:
        capacity = _smallest(milestones, Step.KV_CACHE, "tokens")
    return MemorySeen(
        before_weights_gib=_first(milestones, Step.WEIGHTS_BEGIN),
        weights_gib=_weights(milestones),
        kv_cache_gib=_summed(milestones, Step.KV_CACHE, "kv_cache_gib"),
        capacity_tokens=capacity,
        kv_cache_dtype=_dtype(milestones),
        graphs_gib=_summed(milestones, Step.GRAPHS_END, "used_gib"),
        headroom_gib=_headroom(milestones),
        max_running_requests=_smallest(milestones, Step.SUMMARY, "max_running_requests"),
        graph_max_batch=_smallest(milestones, Step.GRAPHS_BEGIN, "graph_max_batch")
        or _smallest(milestones, Step.GRAPHS_END, "graph_max_batch"),
        context_len=_smallest(milestones, Step.SUMMARY, "context_len"),
        chunked_prefill_size=_smallest(milestones, Step.SUMMARY, "chunked_prefill_size"),
        hicache_host_gb=_summed(milestones, Step.HOST_POOL, "host_gb"),
    )


def _weights(milestones: Sequence[Milestone]) -> float | None:
    """As the log says it; builds that do not say it show what is left before and after."""
    said = _summed(milestones, Step.WEIGHTS_END, "used_gib")
    before, after = _first(milestones, Step.WEIGHTS_BEGIN), _least(milestones, Step.WEIGHTS_END)
    if said is not None or before is None or after is None:
        return said
    return before - after


def _headroom(milestones: Sequence[Milestone]) -> float | None:
    """`available_gpu_mem` of the summary line, which only the first TP rank writes (and 0.4.x without it); another rank
    may be poorer after its last graph."""
    found = [_least(milestones, step) for step in (Step.SUMMARY, Step.GRAPHS_END)]
    return min((free for free in found if free is not None), default=None)


def _smallest(milestones: Iterable[Milestone], step: Step, fact: str) -> int | None:
    found = [m.facts[fact] for m in milestones if m.step is step and fact in m.facts]
    return int(min(found)) if found else None


def _dtype(milestones: Iterable[Milestone]) -> str | None:
    logged = [m.words["dtype"] for m in milestones if "dtype" in m.words]
    try:
        return dtype_in_use(logged=logged[0]) if logged else None
    except UsageError:
        return None
