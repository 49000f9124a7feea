"""What the user has chosen to see: a frozen value that key presses replace."""

from __future__ import annotations

from dataclasses import dataclass

from tui.layout import NAMES, Content, heights
from tui.panels.alike import groups_of
from tui.panels.binds import binds_rows
from tui.panels.gpus import gpu_rows, is_odd
from tui.panels.history import history_rows
from tui.panels.look import Look
from tui.panels.row import Row
from tui.panels.servers import filtered, server_rows
from tui.panels.study import sorted_trials, study_rows
from tui.snapshot import ServerView, Snapshot

Target = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    """One way to sort servers and trials; `s` goes through them."""

    servers: str
    trials: str

    def __str__(self) -> str:
        return f"servers by {self.servers}, trials by {self.trials}"


ORDERS = (Order("address", "number"), Order("finished tok/s", "finished tok/s"), Order("waiting", "mem-fraction"))


@dataclass(frozen=True, slots=True)
class View:
    shown: frozenset[str] = frozenset(NAMES)
    selected: Target | None = None
    needle: str = ""
    sort: int = 0
    first_gpu: int = 0

    @property
    def order(self) -> Order:
        return ORDERS[self.sort % len(ORDERS)]


def visible_servers(snapshot: Snapshot, view: View) -> tuple[ServerView, ...]:
    """Filtered and sorted."""
    servers = filtered(snapshot, view.needle)
    if view.order.servers == "finished tok/s":
        return tuple(sorted(servers, key=lambda server: -(server.rates.completion_tokens_per_s or 0.0)))
    if view.order.servers == "waiting":
        return tuple(sorted(servers, key=lambda server: -(server.pool.queued or 0)))
    return servers


def targets(snapshot: Snapshot, view: View) -> list[Target]:
    """What the arrow keys walk over, from top to bottom."""
    found: list[Target] = [("server", server.url) for server in visible_servers(snapshot, view)]
    if snapshot.study is not None and "study" in view.shown:
        trials = sorted_trials(snapshot.study, view.order.trials, view.needle)
        found += [("trial", str(trial.trial_id)) for trial in trials]
    return found


def chosen_server(snapshot: Snapshot, view: View) -> ServerView | None:
    """The selected server, or the first."""
    servers = visible_servers(snapshot, view)
    wanted = view.selected[1] if view.selected and view.selected[0] == "server" else None
    return next((server for server in servers if server.url == wanted), servers[0] if servers else None)


def content_of(snapshot: Snapshot, view: View) -> Content:
    trials = None if snapshot.study is None else len(snapshot.study.trials)
    machine = sum(1 for finding in snapshot.findings if finding.url is None)
    groups = len(groups_of(snapshot.gpus, is_odd))
    return Content(len(snapshot.gpus), groups, len(visible_servers(snapshot, view)), trials, machine)


def panel_rows(snapshot: Snapshot, view: View, width: int, height: int, look: Look) -> list[Row]:
    """Exactly `height` rows: the panels below each other, each with the lines that the layout gives it."""
    given = heights(height, content_of(snapshot, view), view.shown)
    chosen = chosen_server(snapshot, view)
    servers = visible_servers(snapshot, view)
    ordered = sorted(servers, key=lambda server: server is not chosen)
    kind, name = view.selected or ("", "")
    drawn = {
        "binds": lambda n, h: binds_rows(snapshot, width, h, look, n),
        "gpus": lambda n, h: gpu_rows(snapshot, width, h, look, n, view.first_gpu),
        "servers": lambda n, h: server_rows(servers, width, h, look, n, chosen.url if chosen else None),
        "history": lambda n, h: history_rows(ordered, width, h, look, n),
        "study": lambda n, h: study_rows(
            snapshot,
            width,
            h,
            look,
            n,
            sort=view.order.trials,
            selected=name if kind == "trial" else None,
            needle=view.needle,
        ),
    }
    rows: list[Row] = []
    for place, panel in enumerate(NAMES, 1):
        if given[panel]:
            rows += _filled(drawn[panel](place, given[panel]), given[panel], width)
    return _filled(rows, height, width)


def _filled(rows: list[Row], height: int, width: int) -> list[Row]:
    """Exactly `height` rows: a panel keeps its lines even when it has less to say."""
    blank = Row(((" " * width, "text"),))
    return rows[:height] + [blank] * (height - len(rows))
