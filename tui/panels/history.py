"""History panel: four small graphs of one server."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui import format as fmt
from tui.panels.graph import graph_rows, nice_top
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, title_row
from tui.snapshot import Series, ServerView

Plot = tuple[str, Role, tuple[float, ...], float | None, str]
"""Label, role, values, fixed top (None: by the values), formatted newest value."""


def history_rows(server: ServerView | None, width: int, height: int, look: Look, number: int) -> list[Row]:
    """Two by two where there is width, else as many of them below each other as fit."""
    if server is None:
        rows = [title_row(number, "history", width, look)]
        return [*rows, Pen(width).gap(2).put("no server", "dim").row()][:height]
    columns = 2 if width >= 100 else 1
    each = (width - 2 * (columns - 1)) // columns
    span_s = 2 * (each - 2) * server.series.step_s
    rows = [title_row(number, "history", width, look, f"{server.short_name}  last {fmt.span(span_s)}")]
    plots = _plots(server)
    bands = max(1, min((len(plots) + columns - 1) // columns, (height - 1) // 3))
    tall = (height - 1) // bands
    for band in range(bands):
        pair = plots[band * columns : (band + 1) * columns]
        rows += _band([_draw(plot, server.series, each, tall, look) for plot in pair], width, each)
    return rows[:height]


def _plots(server: ServerView) -> list[Plot]:
    series, top_rate = (
        server.series,
        nice_top((*server.series.gen_tokens_per_s, *server.series.completion_tokens_per_s)),
    )
    waiting = nice_top((*series.queued, *series.running))
    rates = (
        (
            "finished tok/s",
            "finished",
            series.completion_tokens_per_s,
            top_rate,
            fmt.rate(_last(series.completion_tokens_per_s)),
        ),
        (
            "decoding tok/s",
            "decoding",
            series.gen_tokens_per_s,
            top_rate,
            fmt.rate(_last(series.gen_tokens_per_s)),
        ),
    )
    queues = (
        ("running", "running", series.running, waiting, fmt.count(_last(series.running))),
        ("waiting", "waiting", series.queued, waiting, fmt.count(_last(series.queued))),
    )
    pool = (
        ("KV used", "usage", series.usage_share, 1.0, fmt.share(_last(series.usage_share))),
        ("cache hits", "hits", series.hit_share, 1.0, fmt.share(_last(series.hit_share))),
    )
    return [*rates, *queues, *pool]


def _last(values: Sequence[float]) -> float:
    return values[-1] if values else math.nan


def _draw(plot: Plot, series: Series, width: int, height: int, look: Look) -> list[Pen]:
    """A label line and the graph under it."""
    label, role, values, fixed, newest = plot
    top = fixed if fixed is not None else nice_top(values)
    head = Pen(width).put(f"  {label} ", "dim").put(newest, "strong")
    head.right(f"top {fmt.count(top) if top > 1 else fmt.share(top)}", "faint")
    pens = [head]
    for line in graph_rows(values, series.last_bucket, width - 2, max(1, height - 1), top, look):
        pens.append(Pen(width).gap(2).put(line, role))
    return pens


def _band(drawn: Sequence[Sequence[Pen]], width: int, each: int) -> list[Row]:
    """Graphs side by side, line by line."""
    rows = []
    for pens in zip(*drawn, strict=True):
        pen = Pen(width)
        for place, part in enumerate(pens):
            pen.to(place * (each + 2))
            for text, role in part.row().spans:
                pen.put(text, role)
        rows.append(pen.row())
    return rows
