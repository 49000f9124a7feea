"""The one widget of the screen: it draws rows, and redraws only the cells that changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.panels.look import BACKGROUND, COLORS, MONO, Look
from tui.panels.row import Row

JOIN_CELLS = 6
"""Changes this close are sent as one: moving the cursor costs about as many bytes."""


@cache
def style_of(role: str, color: bool) -> Style:
    """Never None: Textual's colour filters fail on segments without a style."""
    if color:
        return Style.parse(f"{COLORS.get(role, COLORS['text'])} on {BACKGROUND}")
    return Style.parse(MONO.get(role, "none"))


class Board(Widget):
    """A panel: a list of rows, drawn line by line."""

    DEFAULT_CSS = "Board { width: 1fr; height: 1; }"

    def __init__(self, look: Look, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.look = look
        self._rows: list[Row] = []
        self._strips: dict[int, Strip] = {}

    def show(self, rows: list[Row]) -> None:
        """Take new rows; only what differs from the old ones is drawn again."""
        old, self._rows = self._rows, rows
        if len(old) != len(rows):
            self._strips.clear()
            self.refresh()
            return
        regions = [
            region for y, pair in enumerate(zip(old, rows, strict=True)) for region in changed(*pair, y)
        ]
        for y in {region.y for region in regions}:
            self._strips.pop(y, None)
        if regions:
            self.refresh(*regions)

    def target_at(self, y: int) -> tuple[str, str] | None:
        """What the row under the mouse stands for."""
        return self._rows[y].target if 0 <= y < len(self._rows) else None

    def render_line(self, y: int) -> Strip:
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


def changed(old: Row, new: Row, y: int) -> Iterator[Region]:
    """The runs of cells in which two rows differ, as regions of line `y`."""
    if old.spans == new.spans:
        return
    before, after = _cells(old), _cells(new)
    begin = end = -1
    for x in range(max(len(before), len(after))):
        if x < len(before) and x < len(after) and before[x] == after[x]:
            continue
        if begin >= 0 and x - end > JOIN_CELLS:
            yield Region(begin, y, end - begin + 1, 1)
            begin = -1
        begin = x if begin < 0 else begin
        end = x
    if begin >= 0:
        yield Region(begin, y, end - begin + 1, 1)


def _cells(row: Row) -> list[tuple[str, str]]:
    return [(char, role) for text, role in row.spans for char in text]
