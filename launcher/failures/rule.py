"""One rule: words that prove a kind of failure, where they must stand, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

from launcher.failure import Culprit, Direction, Kind, Stage
from launcher.failures.story import Message


class Where(Enum):
    """What of a message the pattern must match."""

    ERROR = "error"
    """The text of an exception: a warning with the same words does not count."""
    LINE = "line"
    """Any of its lines."""


class Weight(IntEnum):
    """Among several findings the lightest wins, then the earliest: consequences must not hide their cause."""

    CAUSE = 0
    SUSPECT = 1
    """It may have been caused by something else in the same log (a crash in graph capture, a warm-up that failed)."""
    CONSEQUENCE = 2
    """It always has a cause elsewhere (a peer died, a collective timed out)."""


Condition = Callable[[Message], bool]


def anywhere(_: Message) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """Read it aloud: a message with `pattern` in `where`, in frames like `frames` and under `when`, is a `kind`."""

    kind: Kind
    pattern: re.Pattern[str]
    source: str
    """Where the wording was read: a version and file, an issue, or another project's text."""
    sentence: str
    culprit: Culprit
    where: Where = Where.ERROR
    weight: Weight = Weight.CAUSE
    mem_fraction: Direction = Direction.NONE
    hicache: Direction = Direction.NONE
    retry: bool = False
    frames: re.Pattern[str] | None = None
    when: Condition = anywhere
    stage: Stage | None = None
    """The stage it can only have happened in; else the log tells."""
    quote: bool = False
    """The sentence needs the line's own words: which flag, port or model."""
    survivable: bool = True
    """Whether a server that goes on after these words has not failed."""

    def match(self, message: Message, errors: str) -> re.Match[str] | None:
        """The words that prove it in this message, or None. `errors` is the text of its exceptions."""
        text = errors if self.where is Where.ERROR else message.claims
        found = self.pattern.search(text)
        if found is None or not self.when(message):
            return None
        if self.frames is not None and self.frames.search(message.text) is None:
            return None
        return found


def words(*alternatives: str) -> re.Pattern[str]:
    """A pattern of alternatives, without regard to case."""
    return re.compile("|".join(f"(?:{each})" for each in alternatives), re.IGNORECASE)
