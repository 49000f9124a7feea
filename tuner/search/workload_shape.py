"""What the search is told of a workload beforehand: how much a running request holds, and how much is said twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.workload import Request, Synthetic


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """None where the requests do not tell."""

    tokens_in_flight: float | None
    """KV tokens of its own that a running request holds in the long run: E[(P + L/2) L] / E[L], answers of length L
    weighing by how long they run."""
    reused_prefix_share: float | None
    """Share of the prompt tokens that an earlier request has brought already: shared prefixes, earlier turns."""
    longest_request_tokens: float
    """Prompt and answer of the longest one: a pool below that cannot serve it."""


def shape_of(requests: Sequence[Request]) -> WorkloadShape:
    """The shape of a sample of requests, in play order (the turns of a session follow one another)."""
    return WorkloadShape(
        tokens_in_flight=_tokens_in_flight(requests),
        reused_prefix_share=_reused_share(requests, _reused_tokens(requests)),
        longest_request_tokens=float(max(map(_whole, requests), default=1)),
    )


def _whole(request: Request) -> int:
    return request.prompt_tokens + (request.output_tokens or request.max_tokens)


def _reused_tokens(requests: Sequence[Request]) -> list[int]:
    """Leading tokens of each prompt that the cache may hold: a shared prefix, or the turns before."""
    before: dict[str, int] = {}
    reused = []
    for request in requests:
        earlier = before.get(request.session, 0) if request.turn > 0 else 0
        reused.append(min(request.prompt_tokens, max(request.prefix_tokens, earlier)))
        before[request.session] = _whole(request)
    return reused


def _tokens_in_flight(requests: Sequence[Request]) -> float | None:
    if any(request.output_tokens is None for request in requests):
        return None
    weighted = total = 0.0
    for request in requests:
        length = float(request.output_tokens or 0)
        weighted += (request.prompt_tokens - request.prefix_tokens + length / 2) * length
        total += length
    return weighted / total if total > 0 else None


def _reused_share(requests: Sequence[Request], reused: Sequence[int]) -> float | None:
    """None for texts without a known prefix: they may still share one that nobody has counted."""
    total = sum(request.prompt_tokens for request in requests)
    if total == 0 or (sum(reused) == 0 and not all(isinstance(one.prompt, Synthetic) for one in requests)):
        return None
    return sum(reused) / total
