"""What binds: one diagnosis a server, and what to try."""

from __future__ import annotations

from tui.diagnose.reach import no_server
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, clip, clip_end, title_row, wrap
from tui.snapshot import Finding, ServerView, Severity, Snapshot

ROLE: dict[Severity, Role] = {
    Severity.CRITICAL: "bad",
    Severity.WARNING: "warn",
    Severity.HINT: "hint",
    Severity.FINE: "good",
}


def binds_rows(snapshot: Snapshot, width: int, height: int, look: Look, number: int) -> list[Row]:
    """A title, then for every server its gravest finding, and its advice where there is room."""
    rows = [
        title_row(number, "what binds", width, look, "d: whole diagnosis" if look.keys and snapshot.findings else "")
    ]
    entries = _entries(snapshot)
    if not entries:
        rows.append(Pen(width).gap(2).put(_nothing(snapshot), "dim").row())
    lines_each = max(1, (height - 1) // max(1, len(entries)))
    for server, finding, more in entries:
        rows += _entry(server, finding, more, width, lines_each, look)
    return rows[:height]


def binds_in_full(snapshot: Snapshot, width: int, look: Look, number: int) -> list[Row]:
    """The same with every word of the evidence and of the advice, where there is no end to the lines."""
    rows = [title_row(number, "what binds", width, look)]
    for server, finding, more in _entries(snapshot):
        pen, tail = _head(server, finding, look, width), f" +{more}" if more else ""
        first, *rest = wrap(finding.evidence, pen.left - len(tail))
        rows.append(pen.put(first, "text").put(tail, "dim").row())
        rows += [_indented(line, width, "text", None) for line in wrap(" ".join(rest), width - 10) if line]
        for attempt in finding.tries:
            rows += [_indented(line, width, "dim", None) for line in wrap(f"try {attempt}", width - 10)]
    return rows if len(rows) > 1 else [*rows, Pen(width).gap(2).put(_nothing(snapshot), "dim").row()]


def _entries(snapshot: Snapshot) -> list[tuple[ServerView | None, Finding, int]]:
    """(server, gravest finding, how many more): the machine's own findings first."""
    found: list[tuple[ServerView | None, Finding, int]] = [(None, f, 0) for f in snapshot.findings if f.url is None]
    for server in snapshot.servers:
        mine = snapshot.findings_of(server.url)
        if mine:
            found.append((server, mine[0], len(mine) - 1))
    return found


def _entry(server: ServerView | None, finding: Finding, more: int, width: int, lines: int, look: Look) -> list[Row]:
    """The evidence, wrapped if it must be, and the advice if a line is left for it."""
    target = ("server", server.url) if server else None
    pen, tail = _head(server, finding, look, width), f" +{more}" if more else ""
    room = pen.left - len(tail)
    if len(finding.evidence) <= room or lines < 2:
        first = pen.put(clip_end(finding.evidence, room), "text").put(tail, "dim").row(target)
        advice = [_indented("try " + " · ".join(finding.tries), width, "dim", target)] if finding.tries else []
        return [first, *advice][:lines]
    head, *rest = wrap(finding.evidence, room)
    first = pen.put(head, "text").put(tail, "dim").row(target)
    return [first, _indented(" ".join(rest), width, "text", target)]


def _head(server: ServerView | None, finding: Finding, look: Look, width: int) -> Pen:
    role = ROLE[finding.severity]
    name = server.short_name if server else f"GPU {finding.gpu_index}"
    pen = Pen(width).put("  " if look.ascii else " ▌", role)
    return pen.put(f"{clip(name, 22):<7}", "strong").gap().put(finding.title, role).gap(2)


def _indented(text: str, width: int, role: Role, target: tuple[str, str] | None) -> Row:
    pen = Pen(width).gap(10)
    return pen.put(clip_end(text, pen.left), role).row(target)


def _nothing(snapshot: Snapshot) -> str:
    return "waiting for the first figures" if snapshot.servers else no_server(snapshot)
