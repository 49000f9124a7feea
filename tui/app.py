"""The screen: Textual's part of kvtop. Everything drawn comes from `tui.panels`; here are keys, ticks and
pages.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.timer import Timer

from tui.errors import TuiError
from tui.layout import NAMES
from tui.panels.bars import Bar, footer_row, header_row
from tui.panels.detail import diagnosis_page, help_page, memory_page, server_page, trial_page
from tui.panels.look import BACKGROUND, Look
from tui.panels.row import Pen, Row
from tui.settings import Settings
from tui.snapshot import Snapshot
from tui.source import Source
from tui.view import Target, View, panel_rows, targets
from tui.widgets import Board

FIRST_TICKS_S = (0.05, 0.3)
"""The first figures are shown as soon as they are there, not a whole interval later."""
SEEK_S, SEEK_FAR_S = 10.0, 60.0
FREEZE_AT_TICK = 4
PageRows = Callable[[Snapshot, int, Look], list[Row]]


class Page(ModalScreen[None]):
    """A page over the screen, scrolled by lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark,d,g", "dismiss_page", show=False),
        Binding("down,j", "scroll_by(1)", show=False),
        Binding("up,k", "scroll_by(-1)", show=False),
        Binding("pagedown,space", "scroll_by(10)", show=False),
        Binding("pageup", "scroll_by(-10)", show=False),
    ]
    DEFAULT_CSS = "Page { overflow: hidden; }"

    def __init__(self, rows: PageRows, look: Look) -> None:
        super().__init__()
        self._make = rows
        self._first = 0
        self._board = Board(look)

    def compose(self) -> ComposeResult:
        yield self._board

    def draw(self, snapshot: Snapshot) -> None:
        width, height = self.size
        rows, room = self._make(snapshot, width, self._board.look), height - 1
        self._first = max(0, min(self._first, len(rows) - room))
        shown = rows[self._first : self._first + room]
        blanks = [Pen(width).row()] * (room - len(shown))
        foot = Pen(width).gap().put("esc", "key").put(" back  ", "dim").put("up down", "key").put(" scroll", "dim")
        self._board.show([*shown, *blanks, foot.row()])

    def action_scroll_by(self, lines: int) -> None:
        self._first += lines
        self._app().draw()

    def action_dismiss_page(self) -> None:
        self.dismiss()

    def on_resize(self) -> None:
        self._app().draw()

    def _app(self) -> KvtopApp:
        app = self.app
        assert isinstance(app, KvtopApp)
        return app


class KvtopApp(App[int]):
    """Ticks: take a snapshot, draw the rows that changed."""

    TITLE = "kvtop"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"Screen {{ background: {BACKGROUND}; overflow: hidden; }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", show=False),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("p,space", "pause", show=False),
        Binding("plus,equals_sign", "faster(1)", show=False),
        Binding("minus", "faster(-1)", show=False),
        *(Binding(str(n), f"toggle_panel({n})", show=False) for n in range(1, len(NAMES) + 1)),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("d", "diagnosis", show=False),
        Binding("g", "memory", show=False),
        Binding("down,j", "select(1)", show=False),
        Binding("up,k", "select(-1)", show=False),
        Binding("left", f"seek(-{SEEK_S})", show=False),
        Binding("right", f"seek({SEEK_S})", show=False),
        Binding("pageup", f"seek(-{SEEK_FAR_S})", show=False),
        Binding("pagedown", f"seek({SEEK_FAR_S})", show=False),
        Binding("enter", "open", show=False),
        Binding("escape", "forget", show=False),
    ]

    def __init__(self, source: Source, settings: Settings, host: str = "") -> None:
        super().__init__(ansi_color=not settings.color)
        self.look = Look(settings.color, settings.ascii)
        self.view = View()
        self.snapshot = Snapshot(0.0)
        self.failure: TuiError | None = None
        self._source = source
        self._paused = False
        self._typing: str | None = None
        self._said = ""
        self._host = host
        self._board = Board(self.look)
        self._ticks = 0
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self._board

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        # Left to itself the process would die with the terminal in the alternate screen.
        loop.add_signal_handler(signal.SIGTERM, self._leave_by, signal.SIGTERM)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """The first frame is on the terminal: now the polls, and what they must import, may take their time."""
        self._source.start()
        for delay_s in FIRST_TICKS_S:
            self.set_timer(delay_s, self.tick)
        self._timer = self.set_interval(self._source.interval_s, self.tick)

    def _leave_by(self, number: signal.Signals) -> None:
        self.exit(return_code=128 + number)

    def _hang_up(self) -> None:
        """The terminal is gone. Textual (8.2) would write to it once more when it is shut down and wait for ever: the
        thread that writes has died of the first attempt.
        """
        self._source.stop()
        os._exit(128 + signal.SIGHUP)

    def tick(self) -> None:
        """Take what is due and draw it."""
        self._ticks += 1
        if self._ticks == FREEZE_AT_TICK:
            # What start-up has left is never garbage; unless frozen, every full collection walks through it.
            gc.collect()
            gc.freeze()
        if self._paused:
            return
        try:
            snapshot = self._source.next()
        except TuiError as error:
            self.failure = error
            self.exit(return_code=error.exit_code)
            return
        if snapshot is not None:
            self.snapshot = snapshot
        self.draw()

    def draw(self) -> None:
        """Draw the page that is open, or the panels under it."""
        width, height = self.size
        if width < 20 or height < 5 or not self.screen_stack:
            # Too small to say anything, or a tick that was due when the screen was already being taken down.
            return
        if isinstance(self.screen, Page):
            self.screen.draw(self.snapshot)
            return
        panels = panel_rows(self.snapshot, self.view, width, height - 2, self.look)
        self._board.show(
            [header_row(self.snapshot, self._bar, width), *panels, footer_row(self.snapshot, self._bar, width)]
        )

    @property
    def _bar(self) -> Bar:
        state = "  ".join(word for word in ("PAUSED" if self._paused else "", self._source.status()) if word)
        pace = "" if self._source.replay else f"every {self._source.interval_s:g} s"
        return Bar(self._host, state, pace, self.view.needle, self._typing, self._said)

    def on_resize(self) -> None:
        """Also after Ctrl-Z and fg, with the size as it was: the terminal comes back empty, so everything is due."""
        self.draw()
        for screen in self.screen_stack:
            screen.query(Board).refresh()

    # What the keys do.

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.draw()

    def action_faster(self, steps: int) -> None:
        said = self._source.faster(steps)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(self._source.interval_s, self.tick)
        self._say(said)

    def action_seek(self, seconds: float) -> None:
        snapshot = self._source.seek(seconds)
        if snapshot is not None:
            self.snapshot = snapshot
        elif not self._source.replay:
            self.view = replace(self.view, first_gpu=max(0, self.view.first_gpu + (1 if seconds > 0 else -1)))
        self.draw()

    def action_toggle_panel(self, number: int) -> None:
        self.view = replace(self.view, shown=self.view.shown ^ {NAMES[number - 1]})
        self.draw()

    def action_sort(self) -> None:
        self.view = replace(self.view, sort=self.view.sort + 1)
        self._say(str(self.view.order))

    def action_select(self, steps: int) -> None:
        known = targets(self.snapshot, self.view)
        if not known:
            return
        place = known.index(self.view.selected) if self.view.selected in known else (-1 if steps > 0 else 0)
        self._choose(known[max(0, min(len(known) - 1, place + steps))])

    def _choose(self, target: Target) -> None:
        self.view = replace(self.view, selected=target)
        self.draw()

    def action_open(self) -> None:
        kind, name = self.view.selected or next(iter(targets(self.snapshot, self.view)), ("", ""))
        if kind == "server":
            self._open(lambda snapshot, width, look: _server(snapshot, name, width, look))
        elif kind == "gpu":
            self.action_memory()
        elif kind == "trial":
            self._open(lambda snapshot, width, look: _trial(snapshot, name, width, look))

    def action_diagnosis(self) -> None:
        self._open(diagnosis_page)

    def action_memory(self) -> None:
        self._open(memory_page)

    def action_help(self) -> None:
        self._open(lambda _, width, look: help_page(width, look))

    def _open(self, rows: PageRows) -> None:
        self.push_screen(Page(rows, self.look), lambda _: self.draw())

    def action_forget(self) -> None:
        self.view = replace(self.view, needle="", selected=None)
        self.draw()

    def action_filter(self) -> None:
        self._typing = self.view.needle
        self.draw()

    async def on_event(self, event: events.Event) -> None:
        """While a filter is typed every key belongs to it."""
        if isinstance(event, events.Key) and self._typing is not None and not isinstance(self.screen, Page):
            self._type(event)
            return
        await super().on_event(event)

    def _type(self, event: events.Key) -> None:
        assert self._typing is not None
        if event.key == "enter":
            self._typing = None
        elif event.key == "escape":
            self._typing, self.view = None, replace(self.view, needle="")
        else:
            text = self._typing[:-1] if event.key == "backspace" else self._typing + (event.character or "")
            self._typing = "".join(char for char in text if char.isprintable())
            self.view = replace(self.view, needle=self._typing)
        self.draw()

    def on_board_clicked(self, message: Board.Clicked) -> None:
        if isinstance(self.screen, Page):
            return
        kind, name = message.target
        if kind == "panel":
            self.action_toggle_panel(int(name))
        elif message.target == self.view.selected:
            self.action_open()
        else:
            self._choose(message.target)

    def _say(self, sentence: str) -> None:
        self._said = sentence
        self.draw()


def _server(snapshot: Snapshot, url: str, width: int, look: Look) -> list[Row]:
    found = [server for server in snapshot.servers if server.url == url]
    return server_page(found[0], snapshot, width, look) if found else _gone(width)


def _trial(snapshot: Snapshot, name: str, width: int, look: Look) -> list[Row]:
    study = snapshot.study
    found = [trial for trial in study.trials if str(trial.trial_id) == name] if study else []
    return trial_page(found[0], width, look, study.incumbent) if study and found else _gone(width)


def _gone(width: int) -> list[Row]:
    return [Pen(width).gap(2).put("it is no longer there", "dim").row()]


def run_app(source: Source, settings: Settings) -> int:
    """Draw until the user leaves. The terminal is restored and every poll ended, whatever happens."""
    if not settings.color:
        os.environ["NO_COLOR"] = "1"
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    app = KvtopApp(source, settings, socket.gethostname().split(".")[0])
    try:
        app.run(mouse=settings.mouse)
    finally:
        source.stop()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
