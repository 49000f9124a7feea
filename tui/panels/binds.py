"""What binds: one diagnosis a server, and what to try."""

from __future__ import annotations

from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, clip, title_row
from tui.snapshot import Finding, ServerView, Severity, Snapshot

ROLE: dict[Severity, Role] = {
    Severity.CRITICAL: "bad",
    Severity.WARNING: "warn",
    Severity.HINT: "hint",
    Severity.FINE: "good",
}


def binds_rows(snapshot: Snapshot, width: int, height: int, look: Look, number: int) -> list[Row]:
    """A title, then for every server its gravest finding, and its advice where there is room."""
    rows = [title_row(number, "what binds", width, look, _note(snapshot))]
    subjects = [snapshot.findings_of(server.url) for server in snapshot.servers]
    machine = [finding for finding in snapshot.findings if finding.url is None]
    entries = [(None, finding, 0) for finding in machine]
    entries += [
        (server, found[0], len(found) - 1)
        for server, found in zip(snapshot.servers, subjects, strict=True)
        if found
    ]
    if not entries:
        rows.append(Pen(width).gap(2).put(_nothing(snapshot), "dim").row())
    with_advice = len(entries) * 2 < height
    for server, finding, more in entries:
        rows.append(_line(server, finding, more, width, look))
        if with_advice and finding.tries:
            rows.append(_advice(finding, width, server))
    return rows[:height]


def _note(snapshot: Snapshot) -> str:
    return "d: whole diagnosis" if snapshot.findings else ""


def _nothing(snapshot: Snapshot) -> str:
    if not snapshot.servers:
        return (
            "no SGLang server found on this machine; looking again every few seconds (or name one with --url)"
        )
    return "waiting for the first figures"


def _line(server: ServerView | None, finding: Finding, more: int, width: int, look: Look) -> Row:
    role = ROLE[finding.severity]
    name = server.short_name if server else f"GPU {finding.gpu_index}"
    pen = Pen(width).put("  " if look.ascii else " ▌", role)
    pen.put(f"{clip(name, 22):<7}", "strong").gap().put(finding.title, role).gap(2)
    tail = f" +{more}" if more else ""
    pen.put(clip_end(finding.evidence, pen.left - len(tail)), "text").put(tail, "dim")
    return pen.row(("server", server.url) if server else None)


def _advice(finding: Finding, width: int, server: ServerView | None) -> Row:
    pen = Pen(width).gap(10).put("try ", "dim")
    pen.put(clip_end(" · ".join(finding.tries), pen.left), "dim")
    return pen.row(("server", server.url) if server else None)


def clip_end(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
