"""Glyphs and colours. A role names what a span means; its colour is decided here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

Role = str

BACKGROUND = "#11151c"

COLORS: dict[Role, str] = {
    "text": "#c8d0dc",
    "dim": "#6b7688",
    "faint": "#3a4352",
    "strong": "bold #eef2f8",
    "title": "bold #8fa3bf",
    "rule": "#2b3442",
    "key": "bold #7fb4ff",
    "good": "#7ec699",
    "warn": "#e8b45a",
    "bad": "bold #f0716b",
    "hint": "#7fb4ff",
    "selected": "bold #ffffff",
    "weights": "#46557f",
    "kv_used": "#4fb3a5",
    "kv_evictable": "#a3c76d",
    "kv_free": "#2c4a4b",
    "kv_unsplit": "#3d7f80",
    "graphs": "#8a74b8",
    "other": "#8d7350",
    "strangers": "#e0635c",
    "unattributed": "#7a8494",
    "free": "#232a35",
    "finished": "#4fb3a5",
    "decoding": "#6f8fc0",
    "running": "#7fb4ff",
    "waiting": "#e8b45a",
    "usage": "#4fb3a5",
    "hits": "#a3c76d",
}
"""Colours on BACKGROUND. Load is not painted red for being high: only waiting and losing work is."""

MONO: dict[Role, str] = {
    "dim": "dim",
    "faint": "dim",
    "rule": "dim",
    "strong": "bold",
    "title": "bold",
    "key": "bold",
    "bad": "bold",
    "warn": "bold",
    "selected": "bold reverse",
}
"""Attributes alone, for NO_COLOR."""

PARTS = (
    "weights", "kv_used", "kv_evictable", "kv_unsplit", "kv_free", "graphs",
    "other", "unattributed", "strangers", "free",
)  # fmt: skip
"""Memory parts from left to right in a bar."""

PART_NAMES = {
    "weights": "weights",
    "kv_used": "KV used",
    "kv_evictable": "KV evictable",
    "kv_unsplit": "KV pool",
    "kv_free": "KV free",
    "graphs": "graphs",
    "other": "other",
    "unattributed": "in use",
    "strangers": "strangers",
    "free": "free",
}

SHORT_NAMES = {**PART_NAMES, "kv_evictable": "evict", "kv_free": "KV free", "unattributed": "used"}
"""For narrow screens."""

_SHADES = {
    "weights": "▒", "kv_used": "█", "kv_evictable": "▓", "kv_unsplit": "▓", "kv_free": "░", "graphs": "▞",
    "other": "▚", "unattributed": "▒", "strangers": "▇", "free": "·",
}  # fmt: skip
_LETTERS = {
    "weights": "W", "kv_used": "#", "kv_evictable": "=", "kv_unsplit": "K", "kv_free": "-", "graphs": "G",
    "other": "o", "unattributed": "u", "strangers": "X", "free": ".",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """How figures may be drawn on this terminal."""

    color: bool = True
    ascii: bool = False
    keys: bool = True
    """Whether hints at keys make sense: not on paper."""

    def fill(self, part: str) -> str:
        """One cell of a bar. Without colour every part needs a glyph of its own."""
        if self.ascii:
            return _LETTERS[part]
        if self.color:
            return "▆"
        return _SHADES[part]

    @property
    def rule(self) -> str:
        return "-" if self.ascii else "─"

    def number(self, n: int) -> str:
        """A panel's number, small where the font allows it."""
        return str(n) if self.ascii else "⁰¹²³⁴⁵⁶⁷⁸⁹"[n]

    def badge(self, reach: str) -> str:
        signs = "*" if self.ascii else "●"
        table = {
            "up": signs,
            "stale": "o" if self.ascii else "○",
            "down": "x" if self.ascii else "✖",
            "locked": "!",
            "foreign": "?",
            "connecting": "." if self.ascii else "◌",
        }
        return table[reach]
