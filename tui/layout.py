"""How many lines each panel gets. Pure arithmetic, so that every size can be tested."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("binds", "gpus", "servers", "history", "study")
"""Panels 1 to 5, from top to bottom."""


@dataclass(frozen=True, slots=True)
class Content:
    """How much there is to show."""

    gpus: int
    servers: int
    trials: int | None
    """None: no study."""
    machine_findings: int = 0


def heights(height: int, content: Content, shown: frozenset[str]) -> dict[str, int]:
    """Lines for each panel (0: hidden). They never exceed `height`; the history takes what is left.

    First every shown panel gets its least useful height, in order of importance; then they grow to their full
    height in the same order; the rest goes to history and study.
    """
    least, full = _least(content), _full(content)
    given = dict.fromkeys(NAMES, 0)
    left = height
    order = [name for name in ("binds", "servers", "gpus", "study", "history") if name in shown]
    for name in order:
        if least[name] and least[name] <= left:
            given[name] = least[name]
            left -= least[name]
    for name in order:
        if given[name]:
            grown = min(left, max(0, full[name] - given[name]))
            given[name] += grown
            left -= grown
    return _spread(given, left)


def _spread(given: dict[str, int], left: int) -> dict[str, int]:
    """What nobody needs goes to the panel that can use any height; else it stays empty at the bottom."""
    for name in ("history", "study"):
        if given[name]:
            given[name] += left
            return given
    return given


def _entries(content: Content) -> int:
    return max(1, content.servers + content.machine_findings)


def _least(content: Content) -> dict[str, int]:
    return {
        "binds": 1 + _entries(content),
        "servers": 1 + max(1, content.servers),
        "gpus": 1 + max(1, min(content.gpus, 8)),
        "study": 0 if content.trials is None else 5,
        "history": 4 if content.servers else 0,
    }


def _full(content: Content) -> dict[str, int]:
    return {
        "binds": 1 + 2 * _entries(content),
        "servers": 1 + 5 * max(1, content.servers),
        "gpus": 1 + max(1, content.gpus),
        "study": 0 if content.trials is None else min(22, 9 + content.trials),
        "history": 13 if content.servers else 0,
    }
