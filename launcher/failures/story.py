"""A log as a story: messages in order, each with its rank, its stage, its exceptions, and whether life went on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from launcher.failure import Stage
from launcher.logs import BatchLine, LogEvent, LogLine, Milestone, Rank, Step, read_event, split_lines, stage_after

_EXCEPTION = re.compile(
    r"(?:^|exception: |Error: |^\s*\|\s*)"
    r"(?P<error>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|OutOfResources|Failure|Again)\b(?::|$).*)"
)
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<error>.*)")
_ENDS_MESSAGE = re.compile(r"^(?:Traceback |  File |During handling|The above exception|Exception in |Process \S+:$)")
_FRAME = re.compile(r"^\s*File \"")
_SPEECHLESS = re.compile(
    r"Exception ignored in|Exception in ASGI application|Task exception was never retrieved|Ignore import error"
    r"|Failed to get|^\[http_server\]"
)
"""Heads of messages whose traceback ends no server."""
_CRASH = re.compile(r"hit an exception|^Traceback \(most recent", re.MULTILINE)
_DEATH = re.compile(
    r"[Rr]eceived sigquit|SIGQUIT received|kill_process_tree called: .*include_parent=True|crashed with exit code"
    r"|died during initialization|scheduler is dead|^Killed$"
)
_TELLS_OF_CHILD = re.compile(r"^EOFError|scheduler died during initialization|scheduler is dead", re.MULTILINE)
_ENDED = re.compile(rf"{_DEATH.pattern}|fired up and ready|SIGTERM received")
"""Words after which a further start in the same log is a new life."""
_LAST_MESSAGES = 200
_MESSAGE_LINES = 14
"""Lines that an exception's own text may have."""


@dataclass(frozen=True, slots=True)
class Message:
    """One stamped line with the unstamped ones after it (a traceback), or the unstamped ones before the first stamp."""

    number: int
    """Its place in the log, for "what came first"."""
    rank: Rank
    stage: Stage | None
    """Where its rank was; None when the log has shown no milestone."""
    free_gib: float | None
    """What its rank, or the poorest rank, last said to be free on its GPU."""
    lines: tuple[str, ...]
    event: LogEvent | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def claims(self) -> str:
        """What may tell of a failure: a first line that is a milestone or a batch does not, whatever words it has."""
        return "\n".join(self.lines if self.event is None else self.lines[1:])

    @property
    def is_crash(self) -> bool:
        """A traceback that ends a server; not the launcher's own that only tells of a dead child."""
        if self.harmless or self.stage is Stage.SHUTDOWN or _TELLS_OF_CHILD.search(self.text):
            return False
        return _CRASH.search(self.text) is not None

    @property
    def harmless(self) -> bool:
        """Its traceback is one that servers survive."""
        return _SPEECHLESS.search(self.lines[0]) is not None

    def errors(self) -> list[str]:
        """Every exception's text, first (the cause) to last, with the lines that belong to it."""
        found: list[str] = []
        for number, line in enumerate(self.lines):
            match = _EXCEPTION.search(line) or _WHAT.search(line)
            if match is not None and not _FRAME.match(line):
                found.append("\n".join((match["error"], *self._message_after(number))))
        return found

    def _message_after(self, number: int) -> Iterator[str]:
        for line in self.lines[number + 1 : number + _MESSAGE_LINES]:
            if _ENDS_MESSAGE.match(line) or _EXCEPTION.match(line):
                return
            yield line


@dataclass(frozen=True)
class Story:
    """All messages of a log, and what they say together."""

    messages: tuple[Message, ...]

    @cached_property
    def milestones(self) -> tuple[Milestone, ...]:
        return tuple(message.event for message in self.messages if isinstance(message.event, Milestone))

    def milestones_before(self, message: Message) -> tuple[Milestone, ...]:
        return tuple(m.event for m in self.messages[: message.number] if isinstance(m.event, Milestone))

    def reached(self, step: Step) -> bool:
        return any(milestone.step is step for milestone in self.milestones)

    @property
    def last_stage(self) -> Stage | None:
        """Where the server was when the log ends: the launcher's own last words do not take its ranks back."""
        ranks = (message.stage for message in reversed(self.messages) if message.stage is not Stage.LAUNCH)
        last = self.messages[-1].stage if self.messages else None
        return next((stage for stage in ranks if stage is not None), last)

    @property
    def last_words(self) -> str:
        """The end of the log, freed of prefixes."""
        lines = [line for message in self.messages[-_LAST_MESSAGES:] for line in message.lines]
        return "\n".join(lines[-_LAST_MESSAGES:])

    @cached_property
    def deaths(self) -> tuple[int, ...]:
        """The numbers of the messages that say that processes died or are being ended."""
        return tuple(message.number for message in self.messages if _says_death(message))

    def survived(self, message: Message) -> bool:
        """Whether the server went on serving after this message.

        Where something dies later, the rank itself must have served in between: other ranks go on for some seconds
        after the one that matters is gone.
        """
        death = next((number for number in self.deaths if number >= message.number), None)
        later = self.messages[message.number + 1 : death]
        return any(_serves_after(one, message, itself=death is not None) for one in later)

    def last_milestone_before(self, message: Message) -> Message | None:
        """The message that shows how far things had come."""
        before = self.messages[: message.number]
        return next((m for m in reversed(before) if isinstance(m.event, Milestone)), None)


def tell(log: str) -> Story:
    """Read a log as a story. A log of several starts is read from the last one."""
    return Story(tuple(_with_stages(_grouped(_last_start(split_lines(log))))))


def _last_start(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """The lines from the last start on, where the one before it had come to something.

    A supervisor starts a dead server again into the same log; engines that share a stream (Ray) have carriers.
    """
    starts = [number for number, line in enumerate(lines) if line.text.startswith("server_args=")]
    if not starts:
        return lines
    carrier, last = lines[starts[-1]].carrier, starts[-1]
    earlier = (line for line in lines[starts[0] : last] if line.carrier == carrier)
    return lines[last:] if any(_ENDED.search(line.text) for line in earlier) else lines


def _grouped(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    group: list[LogLine] = []
    for line in lines:
        if line.stamped and group:
            yield group
            group = []
        if line.text or group:
            group.append(line)
    if group:
        yield group


def _with_stages(groups: Iterator[list[LogLine]]) -> Iterator[Message]:
    overall: Stage | None = None
    by_rank: dict[Rank, Stage] = {}
    free: dict[Rank, float] = {}
    for number, group in enumerate(groups):
        head = group[0]
        event = read_event(head)
        # The arguments alone say nothing of where a server was: logs are often cut between them and the end.
        if isinstance(event, BatchLine) or (isinstance(event, Milestone) and event.step is not Step.ARGUMENTS):
            overall = stage_after(overall or Stage.LAUNCH, event)
            by_rank[head.rank] = stage_after(by_rank.get(head.rank, Stage.LAUNCH), event)
        if isinstance(event, Milestone) and "available_gib" in event.facts:
            free[head.rank] = event.facts["available_gib"]
        stage = _stage_of(head.rank, overall, by_rank)
        free_gib = free.get(head.rank, min(free.values(), default=None))
        yield Message(number, head.rank, stage, free_gib, tuple(line.text for line in group), event)


def _stage_of(rank: Rank, overall: Stage | None, by_rank: dict[Rank, Stage]) -> Stage | None:
    """A rank's own milestones count while the server starts; once HTTP is up all ranks are where the server is."""
    if overall in (None, Stage.WARM_UP, Stage.FIRST_PREFILL, Stage.UNDER_LOAD, Stage.SHUTDOWN):
        return overall
    return by_rank.get(rank, overall)


def _says_death(message: Message) -> bool:
    """An orderly stop ends its children with the same words."""
    return message.stage is not Stage.SHUTDOWN and any(_DEATH.search(line) is not None for line in message.lines)


def _serves_after(later: Message, message: Message, *, itself: bool) -> bool:
    event = later.event
    if isinstance(event, Milestone):
        return event.step is Step.READY
    same = later.rank == message.rank or not (itself or message.rank.known)
    return isinstance(event, BatchLine) and same
