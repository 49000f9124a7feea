"""Log lines: the figures of batch lines, retractions and start-up lines, under the names that they have there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.cases.case import Case, Check, compared
from bench.cases.names import MISSING, is_sentence
from launcher.failures import Evidence, classify
from launcher.logs import (
    BatchLine,
    LogFollower,
    Milestone,
    Phase,
    RetractionLine,
    Step,
    distinct_retractions,
)

_SCOPES = {
    "prefill": (Phase.PREFILL, -1),
    "prefill_last": (Phase.PREFILL, -1),
    "last_prefill": (Phase.PREFILL, -1),
    "prefill_first": (Phase.PREFILL, 0),
    "first_prefill": (Phase.PREFILL, 0),
    "decode": (Phase.DECODE, -1),
    "decode_last": (Phase.DECODE, -1),
    "last_decode": (Phase.DECODE, -1),
    "decode_first": (Phase.DECODE, 0),
    "first_decode": (Phase.DECODE, 0),
    "last": (None, -1),
    "first": (None, 0),
}


class Reading:
    """Everything that a log says."""

    def __init__(self, log: str) -> None:
        follower = LogFollower()
        events = [*follower.feed(log), *follower.finish()]
        self.batches = [event for event in events if isinstance(event, BatchLine)]
        self.retractions = [event for event in events if isinstance(event, RetractionLine)]
        self.milestones = [event for event in events if isinstance(event, Milestone)]
        self.memory = follower.timeline().memory
        self.failure = classify(Evidence(log=log))

    def of(self, phase: Phase | None) -> list[BatchLine]:
        return [batch for batch in self.batches if phase in (None, batch.phase)]


def judge(case: Case) -> Iterator[Check]:
    for name, wanted in case.scopes():
        reading = Reading(case.text(name))
        for key, expected in wanted.items():
            yield from _checks(f"{name}: {key}", key, expected, reading)


def _checks(what: str, key: str, expected: Any, reading: Reading) -> Iterator[Check]:
    if isinstance(expected, Mapping):
        for field, value in expected.items():
            yield compared(f"{what}.{field}", value, _in_scope(key, field, reading))
    elif not is_sentence(expected):
        got = _figure(key, expected, reading)
        yield compared(what, expected, "no such figure" if got is MISSING and expected is not None else _known(got))


def _known(value: Any) -> Any:
    return None if value is MISSING else value


def _in_scope(scope: str, field: str, reading: Reading) -> Any:
    if scope in ("sum", "total"):
        return sum(float(batch.fields.get(field, 0)) for batch in _newest_by_rank(reading.batches))
    if scope in ("max", "mean"):
        found = [float(b.fields[field]) for b in _newest_by_rank(reading.batches) if field in b.fields]
        return (max(found) if scope == "max" else sum(found) / len(found)) if found else None
    if scope in set(Step):
        return next((m.facts[field] for m in reading.milestones if m.step == scope and field in m.facts), None)
    phase, place = _SCOPES.get(scope, (None, -1))
    lines = reading.of(phase)
    return _field(lines[place], field) if lines else None


def _field(batch: BatchLine, name: str) -> Any:
    if name == "rank":
        return str(batch.rank)
    if name in ("cuda_graph", "graph"):
        return batch.used_graph
    return batch.fields.get(name)


def _newest_by_rank(batches: Sequence[BatchLine]) -> list[BatchLine]:
    """The last decode line of each rank, or the last line of any phase where none decodes."""
    decodes = [batch for batch in batches if batch.phase is Phase.DECODE]
    return list({(batch.carrier, batch.rank): batch for batch in (decodes or batches)}.values())


def _figure(key: str, expected: Any, reading: Reading) -> Any:
    figures = _of_batches(reading) | _of_retractions(reading.retractions) | _of_startup(reading) | _verdict(reading)
    if key in figures:
        return figures[key]
    lines = reading.of(Phase.DECODE) or reading.batches
    if isinstance(expected, list):
        found = [batch.fields[key] for batch in lines if key in batch.fields]
        return found or MISSING
    field = key.removesuffix("_last")
    lines_first = (batch.fields for batch in reversed(reading.batches))
    steps_then = (milestone.facts for milestone in reversed(reading.milestones))
    return next((found[field] for found in (*lines_first, *steps_then) if field in found), MISSING)


def _of_batches(reading: Reading) -> dict[str, Any]:
    decodes, prefills = reading.of(Phase.DECODE), reading.of(Phase.PREFILL)
    last = next(reversed(decodes or prefills), None)
    figures: dict[str, Any] = {
        "decode_lines": len(decodes),
        "prefill_lines": len(prefills),
        "batch_lines": len(reading.batches),
        "dp_ranks": sorted({b.rank.dp for b in reading.batches if b.rank.dp is not None}),
        "tp_ranks": sorted({b.rank.tp for b in reading.batches if b.rank.tp is not None}),
        "pp_ranks": sorted({b.rank.pp for b in reading.batches if b.rank.pp is not None}),
    }
    if last is not None:
        figures |= {"kv_usage_last": last.token_usage_share, "pressure": last.token_usage_share}
        figures["swa_usage_last"] = last.fields.get("swa_token_usage")
    return figures


def _of_retractions(lines: list[RetractionLine]) -> dict[str, Any]:
    events = distinct_retractions(lines)
    total = sum(event.retracted_requests for event in events)
    return {
        "retraction_lines": len(lines),
        "retraction_events": len(events),
        "retraction_events_dedup_over_ranks": len(events),
        "retracted_reqs_total": total,
        "retracted_reqs_total_dedup": total,
        "new_tokens_gained": events[-1].tokens_gained if events else None,
        "new_token_ratio": [events[-1].ratio_before, events[-1].ratio_after] if events else None,
    }


def _of_startup(reading: Reading) -> dict[str, Any]:
    memory = reading.memory
    steps = Counter(milestone.step for milestone in reading.milestones)
    return {
        "graph_mem_gb": memory.graphs_gib,
        "graphs_gb": memory.graphs_gib,
        "kv_tokens": memory.capacity_tokens,
        "kv_gb": memory.kv_cache_gib,
        "bytes_per_token": memory.bytes_per_token,
        "avail_mem_gb": memory.headroom_gib,
        "available_gpu_mem_gb": memory.headroom_gib,
        "headroom_gb": memory.headroom_gib,
        "capture_seconds": _took_s(reading.milestones, Step.GRAPHS_END),
        "load_seconds": _took_s(reading.milestones, Step.WEIGHTS_END),
        "max_total_num_tokens": memory.capacity_tokens,
        "capacity": memory.capacity_tokens,
        "max_running_requests": memory.max_running_requests,
        "context_len": memory.context_len,
        "chunked_prefill_size": memory.chunked_prefill_size,
        "weights_gb": memory.weights_gib,
        "weight_mem_gb": memory.weights_gib,
        "avail_before_weights_gb": memory.before_weights_gib,
        "kv_cache_gb": memory.kv_cache_gib,
        "kvcache_gb": memory.kv_cache_gib,
        "kv_cache_dtype": memory.kv_cache_dtype,
        "dtype": memory.kv_cache_dtype,
        "host_gb": memory.hicache_host_gb,
        "hicache_host_gb": memory.hicache_host_gb,
        "ready": steps[Step.READY] > 0,
        "fired_up": steps[Step.READY] > 0,
    }


def _took_s(milestones: Sequence[Milestone], step: Step) -> float | None:
    found = [m.facts["took_s"] for m in milestones if m.step is step and "took_s" in m.facts]
    return sum(found) if found else None


def _verdict(reading: Reading) -> dict[str, Any]:
    return {
        "is_failure": reading.failure is not None,
        "failure_class": reading.failure.kind.value if reading.failure else "none",
    }
