"""Trials as points: mem-fraction to the right, finished tokens per second up, the memory boundary below."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tui import format as fmt
from tui.panels.graph import nice_top
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row
from tuner.trial import TrialResult

if TYPE_CHECKING:
    from tuner.journal.view import BoundaryPoint, StudyView

Cell = tuple[str, Role]
AXIS_CELLS = 7
"""For the scale on the left."""


def scatter(study: StudyView, width: int, height: int, look: Look) -> list[Row]:
    """`height` rows of `width` cells: points, the axis, and survival under it."""
    fractions = _span(study)
    plot_width, plot_height = width - AXIS_CELLS, height - 2
    if fractions is None or plot_width < 12 or plot_height < 3:
        return [Pen(width).put("no points yet", "dim").row()]
    top = nice_top([trial.best_level.completion_rate.high for trial in study.trials if trial.best_level])
    grid: list[list[Cell]] = [[(" ", "text")] * plot_width for _ in range(plot_height)]
    _draw_boundary(grid, study, fractions, look)
    for trial in study.trials:
        _draw_trial(grid, study, trial, fractions, top, look)
    rows = [_grid_row(line, y, plot_height, top, width) for y, line in enumerate(grid)]
    return [*rows, _survival(study, fractions, plot_width, width, look), _scale(fractions, plot_width, width)]


def _span(study: StudyView) -> tuple[float, float] | None:
    """The mem-fractions from left to right, with a margin."""
    known = [trial.proposal.setting.mem_fraction_static for trial in study.trials]
    values = [value for value in known if value is not None]
    values += [point.mem_fraction_static for point in study.boundary]
    if not values:
        return None
    margin = max(0.005, 0.05 * (max(values) - min(values)))
    return min(values) - margin, max(values) + margin


def _column(value: float, fractions: tuple[float, float], width: int) -> int:
    low, high = fractions
    return max(0, min(width - 1, round((value - low) / (high - low) * (width - 1))))


def _draw_trial(
    grid: list[list[Cell]],
    study: StudyView,
    trial: TrialResult,
    fractions: tuple[float, float],
    top: float,
    look: Look,
) -> None:
    fraction = trial.proposal.setting.mem_fraction_static
    if fraction is None:
        return
    x, bottom = _column(fraction, fractions, len(grid[0])), len(grid) - 1
    if trial.best_level is None:
        if trial.failure is not None:
            grid[bottom][x] = ("x" if look.ascii else "×", "bad")
        return
    y = bottom - round(trial.best_level.completion_rate.value / top * bottom)
    is_best = study.incumbent is not None and study.incumbent.trial_id == trial.trial_id
    sign, role = ("@" if look.ascii else "◆", "finished") if is_best else ("o" if look.ascii else "●", "running")
    grid[max(0, min(bottom, y))][x] = (sign, role)


def _draw_boundary(grid: list[list[Cell]], study: StudyView, fractions: tuple[float, float], look: Look) -> None:
    """A dotted line where survival falls through one half, of the dtype that leads."""
    points = _boundary(study)
    for before, after in pairwise(points):
        if before.survival_probability >= 0.5 > after.survival_probability:
            middle = (before.mem_fraction_static + after.mem_fraction_static) / 2
            x = _column(middle, fractions, len(grid[0]))
            for line in grid:
                line[x] = ("|" if look.ascii else "┊", "warn")


def _boundary(study: StudyView) -> list[BoundaryPoint]:
    if not study.boundary:
        return []
    leading = study.incumbent.setting.kv_cache_dtype if study.incumbent else study.boundary[0].kv_cache_dtype
    points = [point for point in study.boundary if point.kv_cache_dtype == leading]
    return sorted(points or study.boundary, key=lambda point: point.mem_fraction_static)


def _grid_row(line: list[Cell], y: int, height: int, top: float, width: int) -> Row:
    label = fmt.count(top) if y == 0 else "0" if y == height - 1 else ""
    pen = Pen(width).put(f"{label:>{AXIS_CELLS - 1}} ", "faint")
    for char, role in line:
        pen.put(char, role)
    return pen.row()


def _survival(study: StudyView, fractions: tuple[float, float], plot_width: int, width: int, look: Look) -> Row:
    """The probability that a start survives, as a strip: full is safe, empty is death."""
    pen = Pen(width).put("lives  "[:AXIS_CELLS], "faint")
    points = _boundary(study)
    if not points:
        return pen.put(look.rule * plot_width, "rule").row()
    low, high = fractions
    for x in range(plot_width):
        fraction = low + (high - low) * x / max(1, plot_width - 1)
        nearest = min(points, key=lambda point: abs(point.mem_fraction_static - fraction))
        pen.put(*_shade(nearest.survival_probability, look))
    return pen.row()


def _shade(probability: float, look: Look) -> Cell:
    role = "good" if probability >= 0.9 else "warn" if probability >= 0.5 else "bad"
    ramp = " .:=#" if look.ascii else " ▂▄▆█"
    return ramp[max(1, min(4, round(probability * 4)))], role


def _scale(fractions: tuple[float, float], plot_width: int, width: int) -> Row:
    low, high = fractions
    middle = "mem-fraction"
    left, right = f"{low:.3f}", f"{high:.3f}"
    gap = max(1, plot_width - len(left) - len(middle) - len(right))
    pen = Pen(width).gap(AXIS_CELLS).put(left, "faint").gap(gap // 2).put(middle, "faint")
    return pen.gap(gap - gap // 2).put(right, "faint").row()
