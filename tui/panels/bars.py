"""The first and the last line of the screen."""

from __future__ import annotations

from dataclasses import dataclass

from tui import format as fmt
from tui.panels.row import Pen, Row, clip_end
from tui.snapshot import Snapshot

KEYS = (
    ("q", "quit"), ("?", "help"), ("p", "pause"), ("+-", "pace"), ("1-5", "panels"),
    ("/", "filter"), ("s", "sort"), ("d", "diagnosis"), ("g", "GPU memory"), ("enter", "open"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """What the screen knows of itself."""

    host: str
    state: str
    """PAUSED, recording, or where a replay is; empty when there is nothing to say."""
    pace: str
    needle: str = ""
    typing: str | None = None
    """The filter that is being typed."""
    said: str = ""
    """The answer to the last key."""


def header_row(snapshot: Snapshot, bar: Bar, width: int) -> Row:
    """The clock stands left: see `tui.widgets.changed_to`."""
    now = snapshot.taken_unix_s
    pen = Pen(width).gap().put("kvtop", "key").gap(2).put(fmt.clock(now) if now else "", "text").gap(2)
    pen.put(bar.host, "strong").gap(2).put(" · ".join(_inventory(snapshot)) if now else "", "dim")
    if bar.needle:
        pen.put(f"  /{bar.needle}", "warn")
    return pen.right("  ".join(word for word in (bar.state, bar.pace) if word) + " ", "dim").row()


def _inventory(snapshot: Snapshot) -> list[str]:
    servers, gpus = len(snapshot.servers), len(snapshot.gpus)
    told = [f"{servers} server{'s' * (servers != 1)}"]
    if gpus or snapshot.gpu_problem is None:
        told.append(f"{gpus} GPU{'s' * (gpus != 1)}")
    if any(server.facts.simulated for server in snapshot.servers):
        told.append("simulated")
    return told


def footer_row(snapshot: Snapshot, bar: Bar, width: int) -> Row:
    """The keys, and what has to be told beside them."""
    pen = Pen(width).gap()
    if bar.typing is not None:
        pen.put("filter ", "dim").put(f"/{bar.typing}_", "strong")
        return pen.put("   Enter keeps it, Esc drops it", "dim").row()
    for key, text in KEYS:
        pen.whole((key, "key"), (f" {text}  ", "dim"))
    if snapshot.problems:
        return pen.put(clip_end(f"  {snapshot.problems[0]}", pen.left), "warn").row()
    return pen.right(f"{bar.said} ", "hint").row()
