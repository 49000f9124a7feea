"""The one form in which a bench prints its figures."""

from __future__ import annotations


def figure(name: str, value: float, unit: str) -> None:
    """Print one figure on a line of its own: `figure NAME VALUE UNIT`."""
    print(f"figure {name} {value:.6g} {unit}", flush=True)
