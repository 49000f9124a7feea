"""One calm screen on a terminal: trial, stage, budget bar, incumbent, last failure."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.budget import words
from tuner.journal.view import Decision, Incumbent, StageNow
from tuner.progress.scene import StudyNow, TrialNow
from tuner.progress.words import best_words, setting_words


class Terminal:
    """Draws itself twice a second; what is decided scrolls above it and stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._study: StudyNow | None = None
        self._stage: StageNow | None = None
        self._trial: TrialNow | None = None
        self._best: Incumbent | None = None
        self._last_failure = ""
        self._spent_s = 0.0
        self._spent_at = time.monotonic()
        # Last: it draws once while it is made.
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._draw, transient=True)

    def open(self, study: StudyNow, spent_s: float) -> None:
        self._study = study
        self._know_spent(spent_s)
        self._live.start()

    def stage(self, stage: StageNow, trial: TrialNow | None, spent_s: float) -> None:
        self._stage, self._trial = stage, trial
        self._know_spent(spent_s)

    def best(self, incumbent: Incumbent) -> None:
        self._best = incumbent

    def decided(self, decision: Decision, spent_s: float) -> None:
        self._know_spent(spent_s)
        if decision.kind == "failure":
            self._last_failure = decision.sentence
        about = "" if decision.trial_id is None else f"trial {decision.trial_id}: "
        self._console.print(Text(f"{words(spent_s):>10}  {about}{decision.sentence}", style="dim"))

    def close(self) -> None:
        self._live.stop()

    def _know_spent(self, spent_s: float) -> None:
        self._spent_s, self._spent_at = spent_s, time.monotonic()

    def _spent_now_s(self) -> float:
        speed = self._study.clock_speed if self._study else 1.0
        return self._spent_s + (time.monotonic() - self._spent_at) * speed

    def _draw(self) -> Group:
        if self._study is None:
            return Group()
        study, spent_s = self._study, self._spent_now_s()
        simulated = " · SIMULATED engine" if study.simulated else ""
        head = Text(f"kvtune-auto · {study.study_id} · {study.model_path}{simulated}", style="bold")
        bar = Table.grid(padding=(0, 1))
        left = f"{words(spent_s)} of {words(study.budget_s)}"
        bar.add_row("budget", ProgressBar(total=study.budget_s, completed=spent_s, width=40), left)
        return Group(Text(), head, bar, *(Text(line, overflow="ellipsis") for line in self._lines()))

    def _lines(self) -> list[str]:
        lines = []
        if self._trial is not None:
            proposal = self._trial.proposal
            about = words(proposal.expected_s)
            what = f"{setting_words(proposal.setting)} ({proposal.purpose.value}, about {about} in all)"
            lines.append(f"trial {self._trial.trial_id}  {what}")
        if self._stage is not None:
            lines.append(f"stage    {self._stage_words(self._stage)}")
        if self._best is not None:
            lines.append(f"best     {best_words(self._best)}")
        if self._last_failure:
            lines.append(f"failure  {self._last_failure}")
        return lines

    def _stage_words(self, stage: StageNow) -> str:
        text = stage.name if not stage.concurrency else f"{stage.name} concurrency {stage.concurrency}"
        if stage.detail:
            text += f": {stage.detail}"
        if stage.since_unix_s is None or self._study is None:
            return text
        took_s = (time.time() - stage.since_unix_s) * self._study.clock_speed
        of = f" of about {words(stage.expected_s)}" if stage.expected_s else ""
        return f"{text} · {words(took_s)}{of}"
