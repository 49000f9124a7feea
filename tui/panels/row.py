"""Rows of spans, and a pen that writes them to an exact width."""

from __future__ import annotations

import textwrap
import unicodedata
from dataclasses import dataclass

from tui.panels.look import Look, Role

Span = tuple[str, Role]


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
        text = one_cell_each(text)[: max(0, self.left)]
        if text:
            self._spans.append((text, role))
            self.column += len(text)
        return self

    def gap(self, cells: int = 1) -> Pen:
        return self.put(" " * cells, "text")

    def to(self, column: int) -> Pen:
        """Blanks up to `column`; nothing if the pen is already past it."""
        return self.gap(max(0, column - self.column))

    def right(self, text: str, role: Role = "text") -> Pen:
        """Text that ends at the right edge; dropped if it does not fit."""
        if len(text) > self.left:
            return self
        return self.to(self.width - len(text)).put(text, role)

    def row(self, target: tuple[str, str] | None = None) -> Row:
        self.to(self.width)
        return Row(tuple(self._spans), target)


def one_cell_each(text: str) -> str:
    """Names come from servers: control characters, wide and combining ones would break the columns."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_single(char) else "?" for char in text)


def _is_single(char: str) -> bool:
    return (
        char.isprintable()
        and not unicodedata.combining(char)
        and unicodedata.east_asian_width(char) not in ("W", "F")
    )


def clip(text: str, width: int) -> str:
    """Shortened in the middle, so that both ends of a path stay readable."""
    if len(text) <= width or width < 4:
        return text[: max(0, width)]
    head = (width - 1) // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


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
