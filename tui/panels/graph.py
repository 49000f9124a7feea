"""Small graphs of braille dots (two points a cell, four levels a row) and stacked bars of cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui.panels.look import Look, Role
from tui.panels.row import Span

_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille bits of the left and of the right column, from the bottom."""
_THIN = 0x47
"""The left column alone."""


def nice_top(values: Sequence[float]) -> float:
    """The top of a scale: a round number, so that scales rarely change."""
    peak = max((value for value in values if not math.isnan(value)), default=0.0)
    if peak < 1e-6:
        return 1.0
    power = 10 ** math.floor(math.log10(peak))
    return float(
        next(step * power for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= peak * 0.9999)
    )


Curve = tuple[Sequence[float], Role]


def graph_rows(
    curves: Sequence[Curve], last_bucket: int, width: int, height: int, top: float, look: Look
) -> list[list[Span]]:
    """`height` lines of `width` cells with one line a curve, newest value at the right; the first curve wins
    a cell.

    Pairs of points are aligned to even bucket numbers, so the graph scrolls by a whole cell every second
    bucket instead of changing every cell with every bucket.
    """
    masks = [_masks(values, last_bucket, width, height, top) for values, _ in curves]
    roles = [role for _, role in curves]
    return [_spans([mask[y] for mask in masks], roles, look) for y in range(height)]


def _masks(values: Sequence[float], last_bucket: int, width: int, height: int, top: float) -> list[list[int]]:
    """The braille bits of every cell, line by line from the top."""
    points = _aligned(values, last_bucket, 2 * width)
    lines = [[0] * width for _ in range(height)]
    before: int | None = None
    for x, value in enumerate(points):
        level = _level(value, top, 4 * height)
        for dot in _stroke(before, level):
            lines[height - 1 - dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
        before = level
    return lines


def _aligned(values: Sequence[float], last_bucket: int, wanted: int) -> list[float]:
    shift = [math.nan] if last_bucket % 2 == 0 else []
    points = [*values[-(wanted - len(shift)) :], *shift]
    return [math.nan] * (wanted - len(points)) + points


def _level(value: float, top: float, dots: int) -> int | None:
    """The dot that stands for a value, counted from the bottom; None for what is not known."""
    if math.isnan(value):
        return None
    return max(0, min(dots - 1, round(value / top * (dots - 1))))


def _stroke(before: int | None, level: int | None) -> range:
    """The dots of one column: from the level before to this one, so that steps are joined."""
    if level is None:
        return range(0)
    if before is None or before == level:
        return range(level, level + 1)
    return range(before + 1, level + 1) if before < level else range(level, before)


def _spans(masks: Sequence[list[int]], roles: Sequence[Role], look: Look) -> list[Span]:
    if not any(map(any, masks)):
        return [(" " * len(masks[0]), roles[0])]
    spans: list[Span] = []
    for cell in zip(*masks, strict=True):
        owner = next((i for i, bits in enumerate(cell) if bits), None)
        char, role = _cell(cell, owner, look) if owner is not None else " ", roles[owner or 0]
        if spans and (spans[-1][1] == role or char == " "):
            spans[-1] = (spans[-1][0] + char, spans[-1][1])
        else:
            spans.append((char, role))
    return spans


def _cell(bits: Sequence[int], owner: int, look: Look) -> str:
    if look.ascii:
        return "*+"[owner % 2]
    if not look.color:
        # Without colours the first curve is drawn whole and the second thin.
        return chr(0x2800 + (bits[owner] if owner == 0 else bits[owner] & _THIN))
    merged = 0
    for part in bits:
        merged |= part
    return chr(0x2800 + merged)


def stacked(parts: Sequence[tuple[Role, float]], total: float, width: int, look: Look) -> list[Span]:
    """A bar of `width` cells. Cells go by largest remainder, so that parts keep their share and the bar its
    width.
    """
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
    solid, hollow = ("#", "-") if look.ascii else ("▆", "▆" if look.color else "░")
    return [(solid * full, role), (hollow * (width - full), "free")]
