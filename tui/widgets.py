"""The one widget of the screen: it draws rows, and redraws only the cells that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import zip_longest

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.format import ascii_only
from tui.panels.look import BACKGROUND, COLORS, MONO, Look
from tui.panels.row import Row, Span

JOIN_CELLS = 6
"""Changes this close are sent as one: moving the cursor costs about as many bytes."""


@cache
def style_of(role: str, color: bool) -> Style:
    """Never None: Textual's colour filters fail on segments without a style."""
    if color:
        return Style.parse(f"{COLORS.get(role, COLORS['text'])} on {BACKGROUND}")
    return Style.parse(MONO.get(role, "none"))


class Board(Widget):
    """Rows over the whole screen. One widget for all panels: a tick costs Textual one refresh, and never a
    layout.
    """

    DEFAULT_CSS = "Board { width: 1fr; height: 1fr; }"
    ALLOW_SELECT = False

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look
        self._rows: list[Row] = []
        self._strips: dict[int, Strip] = {}

    def show(self, rows: list[Row]) -> None:
        """Take new rows; only what differs from the old ones is drawn again."""
        if self.look.ascii:
            rows = [_ascii(row) for row in rows]
        old, self._rows = self._rows, rows
        if len(old) != len(rows):
            self._strips.clear()
            self.refresh()
            return
        regions = []
        for y, (before, after) in enumerate(zip(old, rows, strict=True)):
            if before.spans != after.spans:
                self._strips.pop(y, None)
                regions += [Region(x, y, width, 1) for x, width in changed(before.spans, after.spans)]
        if regions:
            self.refresh(*regions)

    def target_at(self, y: int) -> tuple[str, str] | None:
        """What the row under the mouse stands for."""
        return self._rows[y].target if 0 <= y < len(self._rows) else None

    def render_lines(self, crop: Region) -> list[Strip]:
        """Strips as they are: there is no border, link or filter for which Textual would have to walk over
        them.
        """
        strips = [self._kept_strip(y) for y in range(crop.y, crop.bottom)]
        if crop.x == 0 and crop.width == self.size.width:
            return strips
        return [strip.crop(crop.x, crop.right) for strip in strips]

    def _kept_strip(self, y: int) -> Strip:
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._strip(y)
        return strip

    def _strip(self, y: int) -> Strip:
        color, width = self.look.color, self.size.width
        spans = self._rows[y].spans if y < len(self._rows) else ()
        segments = [Segment(text, style_of(role, color)) for text, role in spans]
        strip = Strip(segments, sum(len(text) for text, _ in spans))
        return strip.adjust_cell_length(width, style_of("text", color))

    def on_resize(self) -> None:
        self._strips.clear()


def _ascii(row: Row) -> Row:
    return Row(tuple((ascii_only(text), role) for text, role in row.spans), row.target)


def changed(old: Sequence[Span], new: Sequence[Span]) -> list[tuple[int, int]]:
    """(column, width) of the runs of cells in which two rows differ; runs close to each other are joined."""
    runs: list[tuple[int, int]] = []
    for x, before, after in _pairs(old, new):
        if before == after:
            continue
        width = max(len(before[0]), len(after[0]))
        if runs and x - sum(runs[-1]) <= JOIN_CELLS:
            runs[-1] = (runs[-1][0], x + width - runs[-1][0])
        else:
            runs.append((x, width))
    return runs


def _pairs(old: Sequence[Span], new: Sequence[Span]) -> Iterator[tuple[int, Span, Span]]:
    """The spans of two rows side by side: as they are while their widths agree, else cell by cell."""
    if len(old) == len(new) and all(len(a[0]) == len(b[0]) for a, b in zip(old, new, strict=True)):
        x = 0
        for before, after in zip(old, new, strict=True):
            yield x, before, after
            x += len(after[0])
        return
    none: Span = ("", "")
    for x, (before, after) in enumerate(zip_longest(_cells(old), _cells(new), fillvalue=none)):
        yield x, before, after


def _cells(spans: Sequence[Span]) -> list[Span]:
    return [(char, role) for text, role in spans for char in text]
