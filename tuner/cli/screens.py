"""Which progress is shown: a screen on a terminal, lines elsewhere, JSON lines; and always the log file."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections.abc import Callable
from pathlib import Path

from launcher import exits
from tuner.journal.view import Decision, Incumbent, StageNow
from tuner.progress import JsonLines, PlainLines, Screen, Terminal, TrialNow
from tuner.progress.scene import StudyNow

LOG = "daemon.log"
LOG_BYTES = 2_000_000
LOG_FILES = 3


class Several:
    """Tells several screens the same. One that cannot be written to any more is forgotten: the study goes on."""

    def __init__(self, *screens: Screen) -> None:
        self._screens = list(screens)

    def open(self, study: StudyNow, spent_s: float) -> None:
        self._tell(lambda screen: screen.open(study, spent_s))

    def stage(self, stage: StageNow, trial: TrialNow | None, spent_s: float) -> None:
        self._tell(lambda screen: screen.stage(stage, trial, spent_s))

    def best(self, incumbent: Incumbent) -> None:
        self._tell(lambda screen: screen.best(incumbent))

    def decided(self, decision: Decision, spent_s: float) -> None:
        self._tell(lambda screen: screen.decided(decision, spent_s))

    def close(self) -> None:
        self._tell(lambda screen: screen.close())

    def _tell(self, what: Callable[[Screen], None]) -> None:
        for screen in tuple(self._screens):
            try:
                what(screen)
            except OSError:
                self._screens.remove(screen)


class _QuietHandler(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """A full disk must not fill the screen with logging's complaints: the journal says it once."""


def open_screen(directory: Path, *, log_json: bool) -> Screen:
    """What is shown here and now, and the rotated log file of the study."""
    return Several(PlainLines(_log_writer(directory)), _shown(log_json))


def _shown(log_json: bool) -> Screen:
    if log_json:
        return JsonLines(lambda line: print(line, flush=True))
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        return Terminal(Console(stderr=True))
    return PlainLines(exits.say)


def _log_writer(directory: Path) -> Callable[[str], None]:
    handler = _QuietHandler(directory / LOG, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger(f"kvtune.{directory.name}")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return logger.info
