"""The one widget of the screen: it draws rows, and redraws only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui.format import ascii_only
from tui.panels.look import BACKGROUND, COLORS, MONO, Look
from tui.panels.row import Row, Span


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

    class Clicked(Message):
        """A row that stands for something was clicked."""

        def __init__(self, target: tuple[str, str]) -> None:
            super().__init__()
            self.target = target

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
                regions.append(Region(0, y, changed_to(before.spans, after.spans), 1))
        if regions:
            self.refresh(*regions)

    def on_click(self, event: Click) -> None:
        target = self._rows[event.y].target if 0 <= event.y < len(self._rows) else None
        if target is not None:
            self.post_message(self.Clicked(target))

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


def changed_to(old: Sequence[Span], new: Sequence[Span]) -> int:
    """The column behind the last cell in which two rows differ.

    Textual (8.2) sends a widget's line from its first cell to the end of the region, wherever the region
    begins: so a line has one region, and panels put what changes often to the left.
    """
    same, longest = 0, max(_width(old), _width(new))
    for (before, its_role), (after, role) in zip(reversed(old), reversed(new), strict=False):
        if before == after and its_role == role:
            same += len(after)
            continue
        return longest - same - (_alike_from_right(before, after) if its_role == role else 0)
    return longest - same


def _width(spans: Sequence[Span]) -> int:
    return sum(len(text) for text, _ in spans)


def _alike_from_right(one: str, other: str) -> int:
    """How many characters at their ends agree."""
    same = 0
    for before, after in zip(reversed(one), reversed(other), strict=False):
        if before != after:
            break
        same += 1
    return same
