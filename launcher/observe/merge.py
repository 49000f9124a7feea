"""Several partial samples of one server as one: for every figure the first source that knows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

from launcher.observe.sample import RankSample, ServerFacts, ServerSample, Totals

_Part = TypeVar("_Part", ServerFacts, RankSample, Totals)


def merge(first: ServerSample, *others: ServerSample) -> ServerSample:
    """One sample of all; the earlier the source, the more it is believed. Time and address are the first's."""
    samples = (first, *others)
    facts = _facts([sample.facts for sample in samples])
    merged = replace(
        first,
        facts=facts,
        ranks=_ranks(samples),
        totals=_filled([sample.totals for sample in samples]),
        ttft=next((sample.ttft for sample in samples if sample.ttft is not None), None),
        itl=next((sample.itl for sample in samples if sample.itl is not None), None),
        e2e=next((sample.e2e for sample in samples if sample.e2e is not None), None),
        sources=tuple(dict.fromkeys(source for sample in samples for source in sample.sources)),
        notes=tuple(dict.fromkeys(note for sample in samples for note in sample.notes)),
    )
    missing = coverage_note(merged)
    return merged if missing is None else replace(merged, notes=(*merged.notes, missing))


def coverage_note(sample: ServerSample) -> str | None:
    """A sentence where the figures are of some DP ranks only.

    Builds up to 0.4.6 write no rank labels: with DP attention one series holds whichever rank wrote last (#6892), and
    the server's total is about dp_size times as much.
    """
    dp_size = sample.facts.dp_size or 1
    telling = sum(rank.running_requests is not None for rank in sample.ranks)
    if dp_size == 1 or not 0 < telling < dp_size:
        return None
    return (
        f"value covers {telling} of {dp_size} dp ranks: requests, tokens and gen rate of the others are not told, "
        "so no total can be"
    )


def _facts(parts: Sequence[ServerFacts]) -> ServerFacts:
    """Flags and speed count from wherever they are set."""
    speed = next((part.clock_speed for part in parts if part.clock_speed != 1.0), 1.0)
    return replace(_filled(parts), simulated=any(part.simulated for part in parts), clock_speed=speed)


def _ranks(samples: Iterable[ServerSample]) -> tuple[RankSample, ...]:
    """Ranks matched by worker and DP rank. A source without workers speaks of the ranks that have none."""
    found: dict[tuple[str, int], list[RankSample]] = {}
    for sample in samples:
        for rank in sample.ranks:
            found.setdefault((rank.worker or "", rank.dp_rank), []).append(rank)
    return tuple(_filled(found[key]) for key in sorted(found))


def _filled(parts: Sequence[_Part]) -> _Part:
    """Field by field the first value that is known (None and empty are not)."""
    first = parts[0]
    if len(parts) == 1:
        return first
    values = {}
    for field in fields(first):
        known = (getattr(part, field.name) for part in parts)
        values[field.name] = next((value for value in known if value not in (None, {})), getattr(first, field.name))
    return type(first)(**values)
