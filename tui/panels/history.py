"""History panel: what gets finished, who waits and how full the pool is, as three small graphs of one
server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui import format as fmt
from tui.panels.graph import graph_rows, nice_top
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, title_row
from tui.snapshot import Series, ServerView

WIDE = 120
GAP_CELLS = 2
BAND_ROWS = 7
"""The least height of a server's graphs when several servers get some."""
TALLEST_ROWS = 16
"""Taller graphs only spread the same dots."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One or two curves on one scale."""

    unit: str
    curves: tuple[tuple[str, Role, tuple[float, ...]], ...]
    """(name, role, values)"""
    top: float
    tell: Callable[[float], str]


def history_rows(
    servers: Sequence[ServerView], width: int, height: int, look: Look, number: int
) -> list[Row]:
    """Three graphs side by side where there is width, a band for every server that there is height for."""
    if not servers:
        rows = [title_row(number, "history", width, look)]
        return [*rows, Pen(width).gap(2).put("no server", "dim").row()][:height]
    if width >= WIDE:
        bands = [(server, _plots(server.series)) for server in servers[: max(1, (height - 1) // BAND_ROWS)]]
    else:
        plots = _plots(servers[0].series)[: max(1, (height - 1) // 4)]
        bands = [(servers[0], [plot]) for plot in plots]
    each = (width - 2 * GAP_CELLS) // 3 if width >= WIDE else width
    span_s = 2 * (each - 2) * servers[0].series.step_s
    rows = [title_row(number, "history", width, look, f"{_names(servers, bands)}  last {fmt.span(span_s)}")]
    for place, (server, plots) in enumerate(bands):
        tall = (height - 1) // len(bands) + (1 if place < (height - 1) % len(bands) else 0)
        tall = min(tall, TALLEST_ROWS)
        rows += _band([_draw(plot, server.series, each, tall, look) for plot in plots], width, each)
    return rows[:height]


def _names(servers: Sequence[ServerView], bands: Sequence[tuple[ServerView, list[Plot]]]) -> str:
    """Whose graphs these are, from top to bottom."""
    shown = list(dict.fromkeys(server.short_name for server, _ in bands))
    return ", ".join(shown) if len(servers) > 1 else shown[0]


def _plots(series: Series) -> list[Plot]:
    finished, decoding = series.completion_tokens_per_s, series.gen_tokens_per_s
    return [
        Plot(
            "tok/s",
            (("finished", "finished", finished), ("decoding", "decoding", decoding)),
            nice_top((*finished, *decoding)),
            fmt.rate,
        ),
        Plot(
            "requests",
            (("running", "running", series.running), ("waiting", "waiting", series.queued)),
            nice_top((*series.running, *series.queued)),
            fmt.count,
        ),
        Plot(
            "",
            (("KV used", "usage", series.usage_share), ("cache hits", "hits", series.hit_share)),
            1.0,
            fmt.share,
        ),
    ]


def _draw(plot: Plot, series: Series, width: int, height: int, look: Look) -> list[Pen]:
    """A line that names the curves and their newest values, and the graph under it."""
    head = Pen(width).gap(2)
    for name, role, values in plot.curves:
        head.put(f"{name} ", role).put(plot.tell(values[-1] if values else math.nan), "strong").gap(2)
    head.put(plot.unit, "dim").right(plot.tell(plot.top), "dim")
    curves = [(values, role) for _, role, values in plot.curves]
    pens = [head]
    for spans in graph_rows(curves, series.last_bucket, width - 2, max(1, height - 1), plot.top, look):
        pen = Pen(width).gap(2)
        for text, role in spans:
            pen.put(text, role)
        pens.append(pen)
    return pens


def _band(drawn: Sequence[Sequence[Pen]], width: int, each: int) -> list[Row]:
    """Graphs side by side, line by line."""
    rows = []
    for pens in zip(*drawn, strict=True):
        pen = Pen(width)
        for place, part in enumerate(pens):
            pen.to(place * (each + GAP_CELLS))
            for text, role in part.row().spans:
                pen.put(text, role)
        rows.append(pen.row())
    return rows
