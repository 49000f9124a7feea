"""Screens from fed snapshots, compared as SVG (`--snapshot-update` after a wanted change), and what keys do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot

from tui.app import KvtopApp, Page
from tui.settings import Settings
from tui.snapshot import Snapshot


@dataclass
class FedSource:
    """One snapshot, again and again."""

    snapshot: Snapshot
    replay: bool = False
    interval_s: float = 3600.0
    taken: int = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def next(self) -> Snapshot:
        self.taken += 1
        return self.snapshot

    def faster(self, steps: int) -> str:
        self.interval_s = max(0.1, self.interval_s / 2**steps)
        return f"every {self.interval_s:g} s"

    def seek(self, seconds: float) -> Snapshot | None:
        return replace(self.snapshot, taken_unix_s=self.snapshot.taken_unix_s + seconds) if self.replay else None

    def status(self) -> str:
        return "replay 0:10 of 1:00 at 1×" if self.replay else ""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock of the header is the machine's own: the same on every machine here."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def app_of(snapshot: Snapshot, settings: Settings | None = None) -> KvtopApp:
    return KvtopApp(FedSource(snapshot), settings or Settings(), "gpu-box")


async def drawn(pilot: Pilot[int]) -> None:
    """Until the snapshot is on the screen, however busy this machine is."""
    app = pilot.app
    assert isinstance(app, KvtopApp)
    while not app.snapshot.taken_unix_s:
        await pilot.pause(0.01)
    await pilot.pause()


def pressing(*keys: str) -> Callable[[Pilot[int]], Any]:
    async def run(pilot: Pilot[int]) -> None:
        await drawn(pilot)
        await pilot.press(*keys)
        await pilot.pause()

    return run


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("busy", (160, 48)),
        ("busy", (80, 24)),
        ("busy", (220, 60)),
        ("ceiling", (160, 48)),
        ("ceiling", (100, 30)),
        ("study_running", (160, 48)),
        ("study_running", (80, 24)),
        ("down", (120, 30)),
        ("no_gpu", (120, 36)),
        ("odd_gpus", (120, 30)),
        ("dp_ranks", (120, 30)),
    ],
)
def test_screen(snap_compare: Any, feed: SimpleNamespace, name: str, size: tuple[int, int]) -> None:
    app = app_of(feed.watched(getattr(feed, name)))
    assert snap_compare(app, terminal_size=size, run_before=drawn)


def test_no_server_and_no_gpu(snap_compare: Any) -> None:
    assert snap_compare(app_of(Snapshot(1_780_000_000.0)), terminal_size=(80, 24), run_before=drawn)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_without_colour(
    snap_compare: Any, feed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, ascii_only: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_of(feed.watched(feed.study_running), Settings(color=False, ascii=ascii_only))
    assert snap_compare(app, terminal_size=(120, 40), run_before=drawn)


@pytest.mark.parametrize(
    "keys",
    [("question_mark",), ("d",), ("enter",), ("down", "down", "down", "enter"), ("2", "4"), ("slash", "q"), ("g",)],
)
def test_keys(snap_compare: Any, feed: SimpleNamespace, keys: tuple[str, ...]) -> None:
    app = app_of(feed.watched(feed.study_running))
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing(*keys))


async def test_no_size_breaks_it(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.study_running))
    async with app.run_test(size=(160, 48)) as pilot:
        await drawn(pilot)
        for size in ((1, 1), (20, 5), (40, 8), (79, 23), (300, 100)):
            await pilot.resize_terminal(*size)
            await pilot.press("d", "down", "escape", "g", "escape", "2", "s")
            assert app.size == size
    assert app.return_code in (0, None)


async def test_pause_stops_the_figures_and_goes_on(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.ceiling))
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("p")
        source = app._source
        assert isinstance(source, FedSource)
        source.interval_s = 0.1
        await pilot.press("plus")
        taken = source.taken
        await pilot.pause(0.3)
        assert source.taken == taken
        assert "PAUSED" in text_of(app)
        await pilot.press("p")
        while source.taken <= taken:
            await pilot.pause(0.02)


async def test_a_paused_replay_still_says_where_it_is(feed: SimpleNamespace) -> None:
    app = KvtopApp(FedSource(feed.watched(feed.ceiling), replay=True), Settings(), "gpu-box")
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("p")
        assert "PAUSED  replay 0:10 of 1:00 at 1×" in text_of(app)


async def test_a_filter_leaves_what_fits(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.busy))
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        await pilot.press("slash", *"qwen", "enter")
        assert app.view.needle == "qwen"
        assert "Qwen2.5-32B" in text_of(app)
        assert "Kimi" not in text_of(app)
        await pilot.press("escape")
        assert "Kimi" in text_of(app)


async def test_the_mouse_chooses_and_opens_a_server(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.busy))
    async with app.run_test(size=(120, 40)) as pilot:
        await drawn(pilot)
        line = next(y for y, row in enumerate(app._board._rows) if "Qwen2.5" in row.text)
        await pilot.click(offset=(10, line))
        assert app.view.selected == ("server", "http://127.0.0.1:30001")
        await pilot.click(offset=(10, line))
        await pilot.pause()
        assert isinstance(app.screen, Page)


async def test_q_leaves_with_zero(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.ceiling))
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("q")
    assert app.return_code == 0


def text_of(app: KvtopApp) -> str:
    return "\n".join(row.text for row in app._board._rows)


async def test_a_tick_that_comes_after_the_end_does_nothing(feed: SimpleNamespace) -> None:
    app = app_of(feed.watched(feed.ceiling))
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
    app.tick()
