"""How many lines each panel gets. Pure arithmetic, so that every size can be tested."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("binds", "gpus", "servers", "history", "study")
"""Panels 1 to 5, from top to bottom."""
ORDER = ("binds", "servers", "gpus", "study", "history")
"""By importance, where there is too little room for all."""


@dataclass(frozen=True, slots=True)
class Content:
    """How much there is to show."""

    gpus: int
    gpu_groups: int
    """Rows when GPUs that are alike share one."""
    servers: int
    trials: int | None
    """None: no study."""
    machine_findings: int = 0


def heights(height: int, content: Content, shown: frozenset[str]) -> dict[str, int]:
    """Lines for each panel (0: hidden). They never exceed `height`.

    Three rounds, each in order of importance: the least that makes sense, what an engineer wants next, and
    the full height (GPUs unfold all or not at all). History and study take what is left.
    """
    given = dict.fromkeys(NAMES, 0)
    left = height
    for wanted in (_least(content), _good(content), _full(content)):
        for name in ORDER:
            more = wanted[name] - given[name]
            if name in shown and more > 0 and (more <= left or (given[name] and name != "gpus")):
                taken = min(left, more)
                given[name] += taken
                left -= taken
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
        "gpus": 1 + max(1, min(content.gpu_groups, 8)),
        "study": 0 if content.trials is None else 5,
        "history": 0,
    }


def _good(content: Content) -> dict[str, int]:
    return {
        "binds": 1 + 2 * _entries(content),
        "servers": 1 + 2 * max(1, content.servers),
        "gpus": 1 + max(1, content.gpu_groups),
        "study": 0 if content.trials is None else 8,
        "history": 5 if content.servers else 0,
    }


def _full(content: Content) -> dict[str, int]:
    return {
        "binds": 1 + 2 * _entries(content),
        "servers": 1 + 5 * max(1, content.servers),
        "gpus": 1 + max(1, content.gpus),
        "study": 0 if content.trials is None else min(22, 9 + content.trials),
        "history": 8 if content.servers else 0,
    }
