"""The scheduler's lines while it serves: "Prefill batch", "Decode batch", and retractions.

Every version writes `name: value` pairs with commas between, under names that come and go: `#token` became
`#full token` with hybrid pools and `#gpu token` with HiSparse, prefill nodes have `#transferring-req` in place of
`#running-req`, `cuda graph` is `cpu graph` or `npu graph` elsewhere. So all pairs are kept by name, and properties
give the ones that have a meaning in every version. What a line does not say is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from launcher.logs.line import LogLine, Rank

_BATCH = re.compile(r"(?P<phase>Prefill|Decode) batch(?: ?\[(?P<iteration>\d+)\])?[.,:]? ?(?=#)")
_PAIR = re.compile(
    r"(?P<name>#?[A-Za-z][\w /()-]*?): (?P<value>True|False|nan|inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<percent>%?)"
)
_RETRACTED = re.compile(r"#retracted_reqs: (\d+)")
_GAINED = re.compile(r"#new_tokens_gained: (\d+)")
_RATIO = re.compile(r"#new_token_ratio: (\d+(?:\.\d+)?) -> (\d+(?:\.\d+)?)")


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One "Prefill batch" or "Decode batch" line of one rank."""

    phase: Phase
    rank: Rank
    stamp_s: float | None
    carrier: str = ""
    """Whose stream it came through (a Ray actor): two engines must not be mixed."""
    fields: Mapping[str, float | bool] = field(default_factory=dict)
    """Every pair by its name in snake case, units and `#` dropped: `running_req`, `token_usage`, `swa_token`,
    `gen_throughput`, `cuda_graph`, ... Percentages are shares."""

    @property
    def running_requests(self) -> int | None:
        return self._count("running_req")

    @property
    def queued_requests(self) -> int | None:
        return self._count("queue_req")

    @property
    def used_tokens(self) -> int | None:
        """KV tokens in use on the device, of the full-attention pool where there are several."""
        return next((n for n in map(self._count, ("token", "full_token", "gpu_token")) if n is not None), None)

    @property
    def token_usage_share(self) -> float | None:
        """Of the pool that is fullest: full attention, sliding window or Mamba; the device's, not the host's."""
        names = ("token_usage", "full_token_usage", "swa_token_usage", "mamba_usage", "gpu_token_usage")
        found = [float(self.fields[name]) for name in names if name in self.fields]
        return max(found, default=None)

    @property
    def gen_tokens_per_s(self) -> float | None:
        return self._number("gen_throughput")

    @property
    def input_tokens_per_s(self) -> float | None:
        return self._number("input_throughput")

    @property
    def new_tokens(self) -> int | None:
        return self._count("new_token")

    @property
    def cached_tokens(self) -> int | None:
        return self._count("cached_token")

    @property
    def used_graph(self) -> bool | None:
        """Whether the step ran as a captured graph, on whatever device."""
        found = [value for name, value in self.fields.items() if name.endswith("_graph")]
        return bool(found[0]) if found else None

    def _number(self, name: str) -> float | None:
        value = self.fields.get(name)
        return None if value is None else float(value)

    def _count(self, name: str) -> int | None:
        value = self.fields.get(name)
        return int(value) if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class RetractionLine:
    """Requests thrown out of the running batch to be prefilled again: a normal event, not a failure.

    "Decode out of memory happened. #retracted_reqs" (0.4.x) and "KV cache pool is full. Retract requests." (0.5.x).
    Every TP rank logs the same event.
    """

    rank: Rank
    stamp_s: float | None
    retracted_requests: int
    tokens_gained: int | None = None
    ratio_before: float | None = None
    ratio_after: float | None = None


def read_batch(line: LogLine) -> BatchLine | None:
    """The batch line that this line is, or None."""
    if " batch" not in line.text:
        return None
    head = _BATCH.search(line.text)
    if head is None:
        return None
    fields = {_snake(pair["name"]): _value(pair) for pair in _PAIR.finditer(line.text, head.end())}
    return BatchLine(Phase(head["phase"].lower()), line.rank, line.stamp_s, line.carrier, fields)


def read_retraction(line: LogLine) -> RetractionLine | None:
    """The retraction that this line tells of, or None."""
    count = _RETRACTED.search(line.text) if "#retracted_reqs" in line.text else None
    if count is None:
        return None
    gained, ratio = _GAINED.search(line.text), _RATIO.search(line.text)
    return RetractionLine(
        line.rank,
        line.stamp_s,
        int(count[1]),
        int(gained[1]) if gained else None,
        float(ratio[1]) if ratio else None,
        float(ratio[2]) if ratio else None,
    )


def distinct_retractions(lines: list[RetractionLine]) -> list[RetractionLine]:
    """One line per event: the same event of a DP rank is logged by each of its TP ranks."""
    events = {
        (line.rank.dp, line.stamp_s, line.retracted_requests, line.ratio_before, line.ratio_after): line
        for line in reversed(lines)
    }
    return list(reversed(events.values()))


def _snake(name: str) -> str:
    name = re.sub(r"\([^)]*\)", "", name).strip().lstrip("#")
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _value(pair: re.Match[str]) -> float | bool:
    if pair["value"] in ("True", "False"):
        return pair["value"] == "True"
    number = float(pair["value"])
    return number / 100 if pair["percent"] else number
