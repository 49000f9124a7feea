"""How an open loop is brought to its middle, from an empty server.

How many of its requests are in flight in the long run is Little's law: arrivals per second times the seconds that one
takes, its tokens times the seconds per token. Those only the server knows, and they grow with what is in flight. So
the first arrivals tell a pace, requests in mid-life are added up to what that pace holds, their pace is read when
their prefill is behind them, and again, until nothing is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.steady.estimate import Point, mean_of

ROUNDS = 4
_FEWEST_POINTS = 4
_TOKENS_EACH = 16
"""So many tokens for every running request: what was added has been prefilled, and decodes."""
SOME_QUEUE = 1.0
"""From here on requests wait for room, and the server decides what finishes, not the arrivals."""


def pace_s(points: Sequence[Point]) -> float | None:
    """Seconds per token of one running request, over the later half of the points; None before it can be told."""
    later = points[len(points) // 2 :]
    running = mean_of(later, "running")
    if len(points) < _FEWEST_POINTS or not running:
        return None
    if points[-1].generated_tokens - points[0].generated_tokens < _TOKENS_EACH * running:
        return None
    tokens = later[-1].generated_tokens - later[0].generated_tokens
    return (later[-1].now_s - later[0].now_s) * running / tokens if tokens > 0 else None


def is_full(points: Sequence[Point]) -> bool:
    """Whether requests wait: the server holds what it can, and more would only wait too."""
    return (mean_of(points[len(points) // 2 :], "queued") or 0.0) >= SOME_QUEUE
