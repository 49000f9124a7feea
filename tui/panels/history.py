"""History panel: what gets finished, who waits and how full the pool is, as three small graphs of one
server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tui import format as fmt
from tui.panels.graph import graph_rows, nice_top
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, Span, title_row
from tui.panels.servers import gen_of
from tui.snapshot import Series, ServerView

WIDE = 120
GAP_CELLS = 2
BAND_ROWS = 7
"""The least height of a server's graphs when several servers get some."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Two curves on one scale: names of Series fields with their labels and roles."""

    unit: str
    curves: tuple[tuple[str, str, Role], ...]
    tell: Callable[[float | None], str]
    share: bool = False
    """Shares have a fixed scale, up to 1."""


PLOTS = (
    Plot(
        "tok/s",
        (("completion_tokens_per_s", "finished", "finished"), ("gen_tokens_per_s", "decoding", "decoding")),
        fmt.rate,
    ),
    Plot("requests", (("running", "running", "running"), ("queued", "waiting", "waiting")), fmt.count),
    Plot("", (("usage_share", "KV used", "usage"), ("hit_share", "cache hits", "hits")), fmt.share, True),
)


Band = tuple[ServerView, tuple[Plot, ...]]


def history_rows(servers: Sequence[ServerView], width: int, height: int, look: Look, number: int) -> list[Row]:
    """Three graphs side by side where there is width, a band for every server that there is height for."""
    if not servers:
        rows = [title_row(number, "history", width, look)]
        return [*rows, Pen(width).gap(2).put("no server", "dim").row()][:height]
    if width >= WIDE:
        bands: list[Band] = [(server, PLOTS) for server in servers[: max(1, (height - 1) // BAND_ROWS)]]
    else:
        bands = [(servers[0], (plot,)) for plot in PLOTS[: max(1, (height - 1) // 4)]]
    each = (width - 2 * GAP_CELLS) // 3 if width >= WIDE else width
    span_s = 2 * (each - 2) * servers[0].series.step_s
    rows = [title_row(number, "history", width, look, f"{_names(servers, bands)}  last {fmt.span(span_s)}")]
    for place, (server, plots) in enumerate(bands):
        tall = (height - 1) // len(bands) + (1 if place < (height - 1) % len(bands) else 0)
        rows.append(_beside([[_head(plot, server, each)] for plot in plots], width, each)[0])
        rows += _bodies(plots, server.series, width, each, tall - 1, look)
    return rows[:height]


def _names(servers: Sequence[ServerView], bands: Sequence[Band]) -> str:
    """Whose graphs these are, from top to bottom."""
    shown = list(dict.fromkeys(server.short_name for server, _ in bands))
    return ", ".join(shown) if len(servers) > 1 else shown[0]


def _head(plot: Plot, server: ServerView, width: int) -> list[Span]:
    """The line over a graph: its curves, their values now, and the top of the scale."""
    head = Pen(width).gap(2)
    for name, label, role in plot.curves:
        head.put(f"{label} ", role).put(plot.tell(_now(server, name)), "strong").gap(2)
    return head.put(plot.unit, "dim").right(plot.tell(_top(plot, server.series, width - 2)), "dim").spans()


@lru_cache(maxsize=32)
def _bodies(plots: tuple[Plot, ...], series: Series, width: int, each: int, height: int, look: Look) -> tuple[Row, ...]:
    """The graphs themselves; a series is drawn once, as it stays the same for several frames."""
    drawn = [
        [[("  ", "text"), *line] for line in _graph(plot, series, each - 2, max(1, height), look)] for plot in plots
    ]
    return tuple(_beside(drawn, width, each))


def _graph(plot: Plot, series: Series, width: int, height: int, look: Look) -> list[list[Span]]:
    curves = [(getattr(series, name), role) for name, _, role in plot.curves]
    return graph_rows(curves, series.last_bucket, width, height, _top(plot, series, width), look)


@lru_cache(maxsize=32)
def _top(plot: Plot, series: Series, width: int) -> float:
    """Of the scale, over the points that are shown."""
    if plot.share:
        return 1.0
    return nice_top([value for name, _, _ in plot.curves for value in getattr(series, name)[-2 * width :]])


def _now(server: ServerView, name: str) -> float | None:
    pool, rates = server.pool, server.rates
    figures = {
        "completion_tokens_per_s": rates.completion_tokens_per_s,
        "gen_tokens_per_s": gen_of(server),
        "running": pool.running,
        "queued": pool.queued,
        "usage_share": pool.usage_share,
        "hit_share": rates.hit_share,
    }
    return figures[name]


def _beside(drawn: Sequence[Sequence[Sequence[Span]]], width: int, each: int) -> list[Row]:
    """Graphs side by side, line by line."""
    rows = []
    for lines in zip(*drawn, strict=True):
        pen = Pen(width)
        for place, line in enumerate(lines):
            pen.to(place * (each + GAP_CELLS)).extend(line)
        rows.append(pen.row())
    return rows
