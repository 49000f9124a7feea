"""The rows of `bench.h200.truth` as starts: what each showed, which levels were measured on it, how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.errors import UsageError
from launcher.failure import Failure
from tuner.errors import JournalError
from tuner.journal.codec import from_json_value
from tuner.testbed import Started
from tuner.trial import LevelResult

START, LEVEL, DEATH, END = "start", "level", "death", "end"


@dataclass(frozen=True, slots=True)
class RecordedStart:
    """One start of a real server, with everything that was seen of it."""

    mem_fraction_static: float
    started: Started
    levels: tuple[LevelResult, ...] = ()
    """Those whose interval says something."""
    death: Failure | None = None
    """Under load; that of a start-up is in `started`."""
    stop_s: float | None = None

    @property
    def failure(self) -> Failure | None:
        return self.started.failure or self.death


def read_starts(paths: Sequence[Path]) -> tuple[RecordedStart, ...]:
    """The starts of these files in their order. Raises UsageError naming the file and the line."""
    return tuple(start for path in paths for start in _read_file(path))


def _read_file(path: Path) -> list[RecordedStart]:
    starts: list[RecordedStart] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"recording {path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        try:
            _take(starts, json.loads(line))
        except (ValueError, KeyError, TypeError, JournalError) as error:
            raise UsageError(f"recording {path}: line {number}: is no row of bench.h200.truth ({error})") from error
    return starts


def _take(starts: list[RecordedStart], row: Mapping[str, Any]) -> None:
    """One more row: a start, or something of the last one. Rows of other kinds are not for the contest."""
    kind = row["row"]
    if kind == START:
        if row["hicache_size_gb"]:
            raise ValueError(f"hicache_size_gb {row['hicache_size_gb']}: only starts without HiCache can be replayed")
        starts.append(RecordedStart(float(row["mem_fraction_static"]), from_json_value(Started, row)))
    elif kind in (LEVEL, DEATH, END):
        if not starts:
            raise ValueError(f"a {kind} before the first start")
        starts[-1] = _grown(starts[-1], kind, row)


def _grown(start: RecordedStart, kind: str, row: Mapping[str, Any]) -> RecordedStart:
    if kind == DEATH:
        return replace(start, death=from_json_value(Failure, row))
    if kind == END:
        return replace(start, stop_s=float(row["stop_s"]))
    level = from_json_value(LevelResult, row)
    half_width = level.completion_rate.half_width
    says_something = math.isfinite(half_width) and 0 < half_width < level.completion_rate.value
    return replace(start, levels=(*start.levels, level)) if says_something else start
