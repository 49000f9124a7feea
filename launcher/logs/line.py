"""One line of a log, freed of what collectors put in front of it.

SGLang's own prefix is `[2026-11-29 14:02:27 DP0 PP0 TP0 EP0] ` in local time without a zone; only ranks whose size is
above one appear (0.4.10-0.5.23; `SGLANG_LOG_MS=1` adds `.123`; 0.2.x wrote `[gpu=0]`). In front of it stand container
runtimes, Kubernetes, Ray, docker compose, systemd, `srun --label` and other time stamps: the last stamp is SGLang's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(
    r"\[(?:(?P<date>\d{4}-\d\d-\d\d)[ T])?(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?(?P<words>(?: [^\s\]]+)*)\]\s?"
)
_STAMP_WITHIN = 160
"""How far from the beginning of a line a stamp may stand: carriers are short, messages may quote a stamp."""
_CARRIER = re.compile(
    r"""
      \S+\ (?:stdout|stderr)\ [FP]\                            # Kubernetes (CRI): time, stream, whole or part
    | \((?P<actor>[\w.:-]+\ [^()]*?pid=\d+[^()]*)\)\           # Ray: (Actor pid=1, ip=10.0.0.1)
    | [\w.-]+\s+\|\                                            # docker compose: service-1  |
    | [A-Z][a-z]{2}\ [ \d]\d\ [\d:]{8}\ \S+\ \S+\[\d+\]:\      # systemd: Nov 29 14:02:13 host unit[123]:
    | \d{1,4}:\ (?=\S|\s)                                      # srun --label: 3:
    """,
    re.VERBOSE,
)
_GPU_WORD = re.compile(r"\[gpu=(\d+)\] ?")
_RANK_WORD = re.compile(r"(?P<axis>ATTN_CP|MOE_DP|DP|PP|CP|TP|EP)(?P<number>\d+)$")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\][^\n]*$")


@dataclass(frozen=True, slots=True)
class Rank:
    """Who wrote a line; None where the size of that axis is one. The launcher has none at all."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    ep: int | None = None

    @property
    def known(self) -> bool:
        return any(number is not None for number in (self.dp, self.pp, self.tp, self.ep))

    def __str__(self) -> str:
        """As SGLang prints it: `DP0 TP3`; empty without ranks."""
        axes = (("DP", self.dp), ("PP", self.pp), ("TP", self.tp), ("EP", self.ep))
        return " ".join(f"{name}{number}" for name, number in axes if number is not None)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: its stamp and rank, where it has them, and what it says."""

    text: str
    """Without prefixes, colours and trailing blanks."""
    stamp_s: float | None = None
    """Seconds of the time stamp, read as if it were UTC: only differences mean something."""
    rank: Rank = field(default=Rank())
    stamped: bool = False
    """It begins a message; other lines go on with the one before."""
    carrier: str = ""
    """The Ray actor or the like that the line came through: several engines may share one stream."""


def split_lines(text: str) -> list[LogLine]:
    """Every line of a log. Progress bars that overwrite themselves (\\r) give one line each, at their last state."""
    return [read_line(line) for line in text.split("\n")]


def read_line(line: str) -> LogLine:
    """Free one line (without its line end) of its prefixes."""
    line = _last_state(_ANSI.sub("", line))
    actor, line = _without_carrier(line)
    line = _REPEATED.sub("", line)
    stamp = _last_stamp(line)
    if stamp is None:
        gpu = _GPU_WORD.match(line)
        rank = Rank(tp=int(gpu[1])) if gpu else Rank()
        text = line[gpu.end() :] if gpu else line
        return LogLine(text.rstrip(), rank=rank, stamped=gpu is not None, carrier=actor)
    return LogLine(line[stamp.end() :].rstrip(), _seconds(stamp), _ranks(stamp["words"]), stamped=True, carrier=actor)


def _last_state(line: str) -> str:
    """What a terminal would show. A bar and a message may share a line: then the message wins."""
    pieces = [piece for piece in line.split("\r") if piece.strip()]
    return pieces[-1] if pieces else ""


def _without_carrier(line: str) -> tuple[str, str]:
    actor = ""
    while match := _CARRIER.match(line):
        actor = match["actor"] or actor
        line = line[match.end() :]
    return actor, line


def _last_stamp(line: str) -> re.Match[str] | None:
    """The last of the stamps that follow one another; a bar that a stamped message was printed behind counts as
    prefix."""
    found = _STAMP.search(line, 0, _STAMP_WITHIN)
    if found is None and line.startswith(("Capturing ", "Loading ", "  0%")):
        found = _STAMP.search(line)
    while found is not None and (following := _STAMP.match(line, found.end())):
        found = following
    return found


def _seconds(stamp: re.Match[str]) -> float | None:
    fraction = float(f"0.{stamp['part'][1:]}") if stamp["part"] else 0.0
    try:
        moment = datetime.fromisoformat(f"{stamp['date'] or '1970-01-01'}T{stamp['time']}+00:00")
    except ValueError:
        return None
    return moment.timestamp() + fraction


def _ranks(words: str) -> Rank:
    found: dict[str, int] = {}
    for word in words.split():
        if match := _RANK_WORD.match(word):
            found[match["axis"].lower()] = int(match["number"])
    return Rank(found.get("dp"), found.get("pp"), found.get("tp"), found.get("ep"))
