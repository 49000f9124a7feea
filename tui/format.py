"""Figures as an engineer reads them: three significant digits, a unit, and a dash for what is not known."""

from __future__ import annotations

import math
import time

UNKNOWN = "—"
GIB = 2**30


def count(value: float | None) -> str:
    """75, 2.1 K, 159 K, 1.25 M: decimal prefixes, as tokens are counted."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 1000:
        return f"{value:.0f}"
    for divisor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= divisor * 0.9995:
            return f"{_three(value / divisor)} {prefix}"
    return f"{value:.0f}"


def _three(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}".removesuffix("0").removesuffix(".0")


def rate(value: float | None) -> str:
    """Tokens per second: 0.42, 9.3, 930, 1,317."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 9.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def share(value: float | None) -> str:
    """0.964 -> 96%; what is above zero is not shown as 0%."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.01:
        return "<1%"
    return f"{math.floor(value * 100 + 0.5):d}%"


def gib(size_bytes: float | None) -> str:
    if size_bytes is None:
        return UNKNOWN
    value = size_bytes / GIB
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """A latency: 850 µs, 23 ms, 1.4 s, 75 s, 12 m."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 120:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    return span(value)


def span(value: float | None) -> str:
    """A duration to the nearest second: 45s, 12m05s, 3h20m, 2d4h."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def ascii_only(text: str) -> str:
    """For terminals without Unicode: the few signs that kvtop itself writes, and ? for anything else."""
    table = str.maketrans(
        {"—": "-", "·": "|", "÷": "/", "≈": "~", "µ": "u", "°": "C", "×": "x", "≥": ">", "→": ">", "…": "~", "±": "~"}
    )
    return text.translate(table).encode("ascii", "replace").decode("ascii")
