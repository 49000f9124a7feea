"""A log as it grows: text in, events out; and a whole log as a timeline."""

from __future__ import annotations

from launcher.failure import Stage
from launcher.logs.batch import BatchLine, Phase, RetractionLine, read_batch, read_retraction
from launcher.logs.line import LogLine, read_line
from launcher.logs.milestone import FOLLOWED_BY, Milestone, Step, read_milestone
from launcher.logs.startup import build_timeline
from launcher.timeline import Timeline

LogEvent = Milestone | BatchLine | RetractionLine


class LogFollower:
    """Feed it what a log grew by, in pieces of any size; it keeps the milestones."""

    def __init__(self) -> None:
        self.milestones: list[Milestone] = []
        self._rest = ""

    def feed(self, text: str) -> list[LogEvent]:
        """The events of every line that `text` completes, in order."""
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        return [event for line in lines if (event := self._take(read_line(line))) is not None]

    def finish(self) -> list[LogEvent]:
        """The event of a last line that has no line end."""
        rest, self._rest = self._rest, ""
        event = self._take(read_line(rest))
        return [] if event is None else [event]

    def timeline(self, launched_unix_s: float | None = None) -> Timeline:
        """The start-up as far as it was fed."""
        return build_timeline(self.milestones, launched_unix_s)

    def _take(self, line: LogLine) -> LogEvent | None:
        event = read_event(line)
        if isinstance(event, Milestone):
            self.milestones.append(event)
        return event


def read_event(line: LogLine) -> LogEvent | None:
    """What a line tells: a batch, a retraction, a milestone, or nothing of interest."""
    return read_batch(line) or read_retraction(line) or read_milestone(line)


_SERVING = (Stage.FIRST_PREFILL, Stage.UNDER_LOAD)


def stage_after(stage: Stage, event: LogEvent | None) -> Stage:
    """The stage that a server is in after an event.

    A server that is ready has left its start-up behind; batches before "fired up" are the warm-up's, unless the log
    begins in the middle.
    """
    if isinstance(event, Milestone):
        follows = FOLLOWED_BY[event.step]
        return stage if stage in _SERVING and follows is not Stage.SHUTDOWN else follows
    if not isinstance(event, BatchLine) or stage in (Stage.WARM_UP, Stage.SHUTDOWN):
        return stage
    return Stage.UNDER_LOAD if event.phase is Phase.DECODE or stage is Stage.UNDER_LOAD else Stage.FIRST_PREFILL


def read_timeline(log: str, launched_unix_s: float | None = None) -> Timeline:
    """The start-up in a log, whole or as far as it came.

    Seconds count from `launched_unix_s`, or from the log's first milestone. A log of several starts gives the last.
    """
    follower = LogFollower()
    follower.feed(log)
    follower.finish()
    starts = [n for n, m in enumerate(follower.milestones) if m.step is Step.ARGUMENTS]
    return build_timeline(follower.milestones[starts[-1] if starts else 0 :], launched_unix_s)
