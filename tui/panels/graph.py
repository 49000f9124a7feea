"""Small graphs of braille dots (two points a cell, four levels a row) and stacked bars of cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui.panels.look import Look, Role
from tui.panels.row import Span

_LEFT = (0, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0, 0x80, 0xA0, 0xB0, 0xB8)
"""Braille bits for 0 to 4 dots from the bottom, left and right column."""
BRAILLE = tuple(tuple(chr(0x2800 + left + right) for right in _RIGHT) for left in _LEFT)
_ASCII = " .:|"


def nice_top(values: Sequence[float]) -> float:
    """The top of a scale: 1, 1.5, 2, 3, 5 or 8 times a power of ten, so that scales rarely change."""
    peak = max((value for value in values if not math.isnan(value)), default=0.0)
    if peak <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(peak))
    return next(step * power for step in (1, 1.5, 2, 3, 5, 8, 10) if step * power >= peak * 0.9999)


def graph_rows(
    values: Sequence[float], last_bucket: int, width: int, height: int, top: float, look: Look
) -> list[str]:
    """`height` lines of `width` cells, newest value at the right.

    Pairs of points are aligned to even bucket numbers, so the graph scrolls by a whole cell every second bucket
    instead of changing every cell with every bucket.
    """
    points = _aligned(values, last_bucket, 2 * width)
    levels = [_level(value, top, height * 4) for value in points]
    return [_row(levels, width, (height - 1 - y) * 4, look) for y in range(height)]


def _aligned(values: Sequence[float], last_bucket: int, wanted: int) -> list[float]:
    shift = [math.nan] if last_bucket % 2 == 0 else []
    points = [*values[-(wanted - len(shift)) :], *shift]
    return [math.nan] * (wanted - len(points)) + points


def _level(value: float, top: float, dots: int) -> int:
    """Dots from the bottom; a value above zero is never invisible."""
    if math.isnan(value) or value <= 0:
        return 0
    return max(1, min(dots, round(value / top * dots)))


def _row(levels: Sequence[int], width: int, base: int, look: Look) -> str:
    cells = [min(4, max(0, level - base)) for level in levels]
    if look.ascii:
        return "".join(_ASCII[(max(cells[2 * x], cells[2 * x + 1]) * 3 + 2) // 4] for x in range(width))
    return "".join(BRAILLE[cells[2 * x]][cells[2 * x + 1]] for x in range(width))


def stacked(parts: Sequence[tuple[Role, float]], total: float, width: int, look: Look) -> list[Span]:
    """A bar of `width` cells. Cells go by largest remainder, so that parts keep their share and the bar its width."""
    if total <= 0 or width <= 0:
        return []
    exact = [max(0.0, size) / total * width for _, size in parts]
    cells = [int(size) for size in exact]
    order = sorted(range(len(parts)), key=lambda i: exact[i] - cells[i], reverse=True)
    for i in order[: max(0, round(sum(exact)) - sum(cells))]:
        cells[i] += 1
    return [(look.fill(role) * n, role) for (role, _), n in zip(parts, cells, strict=True) if n]


def meter(fraction: float | None, width: int, role: Role, look: Look) -> list[Span]:
    """A one-part bar; an empty frame where the fraction is not known."""
    full = 0 if fraction is None else max(0, min(width, round(fraction * width)))
    solid, hollow = ("#", "-") if look.ascii else ("█", "░" if not look.color else "█")
    return [(solid * full, role), (hollow * (width - full), "free")]
