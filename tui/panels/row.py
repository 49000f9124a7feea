"""Rows of spans, and a pen that writes them to an exact width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from tui.panels.look import Look, Role

Span = tuple[str, Role]

_NOT_SINGLE = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u08ff\u0900-\u10ff\u1100-\u11ff\u1ab0-\u1aff\u1dc0-\u1dff\u200b-\u200f"
    "\u20d0-\u20ff\u231a-\u231b\u23e9-\u23f3\u2614-\u2615\u2648-\u2653\u26a1\u2705\u2728\u274c\u2b50\u2e80-\ua4cf"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe00-\ufe6f\uff00-\uff60\uffe0-\uffe6\U00010000-\U0010ffff]"
)
"""Scripts whose characters may take no cell or two: East Asian wide, combining, Indic, emoji."""
_NUMBER = re.compile(r"\d[\w.,%/]*(?: [KMG]\b)?(?: ?(?:GiB|tok/s|resp/s|ms|µs|s|W|°)(?!\w))?")
"""A number with its prefix and unit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a panel. `target` is what a click or Enter on it means: ("server", url), ("trial", id),
    ...
    """

    spans: tuple[Span, ...]
    target: tuple[str, str] | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    @property
    def width(self) -> int:
        return sum(len(text) for text, _ in self.spans)


class Pen:
    """Writes spans from left to right and never beyond `width` cells."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.column = 0
        self._spans: list[Span] = []

    @property
    def left(self) -> int:
        return self.width - self.column

    def put(self, text: str, role: Role = "text") -> Pen:
        return self._add(cut(one_cell_each(text), self.left), role)

    def extend(self, spans: Iterable[Span]) -> Pen:
        """Spans that were made here before, and are known to fit."""
        for text, role in spans:
            self._add(text, role)
        return self

    def spans(self) -> list[Span]:
        """What has been written, filled up to the width."""
        self.to(self.width)
        return self._spans

    def gap(self, cells: int = 1) -> Pen:
        """Blanks. They join the span before: on the terminal every span costs about 40 bytes of escape
        codes.
        """
        role = self._spans[-1][1] if self._spans and self._spans[-1][1] != "selected" else "text"
        return self._add(" " * min(cells, self.left), role)

    def _add(self, text: str, role: Role) -> Pen:
        if not text:
            return self
        if self._spans and self._spans[-1][1] == role:
            self._spans[-1] = (self._spans[-1][0] + text, role)
        else:
            self._spans.append((text, role))
        self.column += len(text)
        return self

    def to(self, column: int) -> Pen:
        """Blanks up to `column`; nothing if the pen is already past it."""
        return self.gap(max(0, column - self.column))

    def whole(self, *spans: Span) -> Pen:
        """Spans that belong together: all of them, or none if they do not fit."""
        if sum(len(text) for text, _ in spans) <= self.left:
            for text, role in spans:
                self.put(text, role)
        return self

    def right(self, text: str, role: Role = "text") -> Pen:
        """Text that ends at the right edge; dropped if it does not fit with a blank before it."""
        if len(text) >= self.left:
            return self
        return self.to(self.width - len(text)).put(text, role)

    def row(self, target: tuple[str, str] | None = None) -> Row:
        return Row(tuple(self.spans()), target)


def one_cell_each(text: str) -> str:
    """Names come from servers: control characters, wide and combining ones would break the columns."""
    if text.isprintable() and not _NOT_SINGLE.search(text):
        return text
    return "".join(char if char.isprintable() and not _NOT_SINGLE.match(char) else "?" for char in text)


def clip(text: str, width: int) -> str:
    """Shortened in the middle, so that both ends of a path stay readable."""
    if len(text) <= width or width < 4:
        return text[: max(0, width)]
    head = (width - 1) // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def clip_end(text: str, width: int) -> str:
    """Shortened at its end."""
    return text if len(text) <= width else cut(text, width - 1) + "…"


def cut(text: str, width: int) -> str:
    """The first `width` cells; a number that would lose digits or its unit is left out whole."""
    if len(text) <= width:
        return text
    for number in _NUMBER.finditer(text):
        if number.start() < width < number.end():
            return text[: number.start()]
    return text[: max(0, width)]


def title_row(number: int, title: str, width: int, look: Look, note: str = "") -> Row:
    """`─ ¹ title ───── note ─`: the head of a panel."""
    pen = Pen(width)
    pen.put(look.rule, "rule").gap().put(look.number(number), "key").put(title, "title").gap()
    room = width - pen.column - len(note) - (3 if note else 1)
    pen.put(look.rule * max(0, room), "rule")
    if note and room >= 0:
        pen.gap().put(note, "dim").gap()
    pen.put(look.rule * pen.left, "rule")
    return pen.row(("panel", str(number)))


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at blanks."""
    return textwrap.wrap(text, max(8, width)) or [""]
