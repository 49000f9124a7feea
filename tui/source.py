"""Where snapshots come from: a live collector or a recording. The screen cannot tell, except for seeking."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tui.build import SnapshotBuilder
from tui.collector import Collector
from tui.settings import Settings
from tui.snapshot import Snapshot

if TYPE_CHECKING:
    from tui.record import Recorder

WARM_S = 600.0
"""What is replayed before a seek's target, so that rates and graphs are those of a kvtop that had been
watching.
"""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Source(Protocol):
    """What the screen is given."""

    replay: bool

    @property
    def interval_s(self) -> float:
        """Seconds between two snapshots."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def next(self) -> Snapshot | None:
        """The snapshot that is due, or None when nothing is new."""
        ...

    def faster(self, steps: int) -> str:
        """Shorter interval, or faster replay (negative: slower). Returns what it is now, for a person."""
        ...

    def seek(self, seconds: float) -> Snapshot | None:
        """Jump in a recording; None where there is nothing to jump in."""
        ...

    def status(self) -> str:
        """A word for the header: recording, or where the replay is."""
        ...


class LiveSource:
    """The collector's frames, recorded on the way if asked."""

    replay = False

    def __init__(self, collector: Collector, settings: Settings, record: Path | None = None) -> None:
        self._collector = collector
        self._builder = SnapshotBuilder(settings.interval_s)
        self._recorder = _recorder(record, settings.interval_s)

    @property
    def interval_s(self) -> float:
        return self._collector.interval_s

    def start(self) -> None:
        self._collector.start()

    def stop(self) -> None:
        self._collector.stop()
        if self._recorder is not None:
            self._recorder.close()

    def next(self) -> Snapshot:
        frame = self._collector.frame()
        if self._recorder is not None:
            self._recorder.write(frame)
        return self._builder.add(frame)

    def faster(self, steps: int) -> str:
        self._collector.interval_s = _stepped(INTERVALS_S, self._collector.interval_s, -steps)
        return f"every {self._collector.interval_s:g} s"

    def seek(self, seconds: float) -> Snapshot | None:
        del seconds
        return None

    def status(self) -> str:
        return "recording" if self._recorder is not None else ""


def _recorder(path: Path | None, interval_s: float) -> Recorder | None:
    if path is None:
        return None
    from tui.record import Recorder

    return Recorder(path, interval_s)


class ReplaySource:
    """A recording, played at a chosen speed."""

    replay = True

    def __init__(self, path: Path) -> None:
        from tui.record import Recording

        self._recording = Recording(path)
        self._times = self._recording.times_unix_s
        self._builder = SnapshotBuilder(self._recording.interval_s)
        self._next = 0
        self._now_s = self._times[0]
        self._speed = 1.0

    @property
    def interval_s(self) -> float:
        return min(1.0, max(0.2, self._recording.interval_s))

    def start(self) -> None:
        """Nothing runs by itself here."""

    def stop(self) -> None:
        self._recording.close()

    def next(self) -> Snapshot | None:
        """Plays on by one interval times the speed."""
        if self._next > 0:
            self._now_s = min(self._times[-1], self._now_s + self.interval_s * self._speed)
        return self._play_to(self._now_s)

    def faster(self, steps: int) -> str:
        self._speed = _stepped(SPEEDS, self._speed, steps)
        return f"speed {self._speed:g}×"

    def seek(self, seconds: float) -> Snapshot | None:
        self._now_s = min(self._times[-1], max(self._times[0], self._now_s + seconds))
        self._builder = SnapshotBuilder(self._recording.interval_s)
        self._next = bisect.bisect_left(self._times, self._now_s - WARM_S)
        return self._play_to(self._now_s)

    def last(self) -> Snapshot:
        """The end of the recording, as a kvtop that had watched it would show it."""
        snapshot = self.seek(self._times[-1] - self._now_s)
        assert snapshot is not None
        return snapshot

    def status(self) -> str:
        done = self._now_s - self._times[0]
        whole = self._times[-1] - self._times[0]
        return f"replay {_minutes(done)} of {_minutes(whole)} at {self._speed:g}×"

    def _play_to(self, now_s: float) -> Snapshot | None:
        snapshot = None
        while self._next < len(self._times) and self._times[self._next] <= now_s:
            snapshot = self._builder.add(self._recording.frame(self._next))
            self._next += 1
        return snapshot


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _stepped(ladder: tuple[float, ...], value: float, steps: int) -> float:
    """The rung `steps` away from the one nearest to `value`."""
    nearest = min(range(len(ladder)), key=lambda i: abs(ladder[i] - value))
    return ladder[max(0, min(len(ladder) - 1, nearest + steps))]
