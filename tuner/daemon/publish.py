"""After every measured level: verdict and memory boundary into the journal, the answer into its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.daemon.scribe import Scribe
from tuner.errors import DiskFull
from tuner.export import read_answer, write_best
from tuner.journal import Journal
from tuner.journal.view import BoundaryPoint
from tuner.progress.words import doubt_words
from tuner.search import Searcher
from tuner.trial import Setting, TrialResult

BOUNDARY_STEP = 0.01


@dataclass(frozen=True, slots=True)
class Publisher:
    """Callable: writes what is known now. Raises DiskFull."""

    journal: Journal
    searcher: Searcher
    scribe: Scribe
    output: Path

    def __call__(self) -> None:
        history = self.journal.trials()
        verdict = self.searcher.verdict(history)
        doubt = None if verdict.incumbent is None else doubt_words(verdict.incumbent.completion_rate)
        self.journal.set_fact("boundary", boundary(self.searcher, history))
        self.journal.set_fact(
            "verdict",
            {
                "incumbent": verdict.incumbent,
                "runner_up": verdict.runner_up,
                "clear": verdict.clear and doubt is None,
                "explanation": verdict.explanation if doubt is None else f"WARNING: {doubt}. {verdict.explanation}",
            },
        )
        if verdict.incumbent is None:
            return
        self.journal.set_fact("export_setting", self.searcher.export_setting(history))
        self._write()
        self.scribe.screen.best(verdict.incumbent)

    def _write(self) -> None:
        """The journal keeps why the files are not there: whoever looks later must not be sent to them."""
        try:
            write_best(read_answer(self.journal.directory), self.output)
        except DiskFull as error:
            self.journal.set_fact("unwritten", str(error))
            raise
        self.journal.set_fact("unwritten", None)


def boundary(searcher: Searcher, history: tuple[TrialResult, ...]) -> list[BoundaryPoint]:
    """The chance to survive for every fraction and dtype of the space, as the history teaches it."""
    knowledge, space = searcher.knowledge(history), searcher.space
    return [
        BoundaryPoint(dtype, fraction, knowledge.outlook(Setting(fraction, dtype)).survival)
        for dtype in space.kv_cache_dtypes
        for fraction in space.fractions(BOUNDARY_STEP)
    ]
