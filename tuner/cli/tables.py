"""Tables on stdout, for people and for `grep`."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

from tuner.budget import words
from tuner.journal import StudyView
from tuner.journal.view import Incumbent
from tuner.progress.words import rate_words, setting_words
from tuner.trial import TrialResult

_PIPE_WIDTH = 200
"""Columns where there is no terminal, so that no line is broken."""


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def label(view: StudyView) -> str:
    """What must stand beside every number of a simulated study."""
    return " (SIMULATED)" if view.simulated else ""


def studies_table(views: list[StudyView]) -> None:
    table = plain_table("study", "state", "spent", "trials", "best", "model", "begun")
    for view in views:
        best = rate_words(view.incumbent.completion_rate) if view.incumbent else "–"
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.created_unix_s))
        spent = f"{words(view.spent_s)} of {words(view.budget_s)}"
        model = view.model_path
        table.add_row(view.study_id, view.state.value, spent, str(len(view.trials)), best + label(view), model, begun)
    console().print(table)


def trials_table(view: StudyView) -> None:
    table = plain_table("trial", "setting", "purpose", "state", "tokens", "headroom", "best level", "took")
    for trial in view.trials:
        memory = trial.timeline.memory if trial.timeline else None
        tokens = f"{memory.capacity_tokens:,}" if memory and memory.capacity_tokens else "–"
        headroom = f"{memory.headroom_gib:.1f} GiB" if memory and memory.headroom_gib is not None else "–"
        proposal = trial.proposal
        table.add_row(
            str(trial.trial_id),
            setting_words(proposal.setting),
            proposal.purpose.value,
            trial.state.value,
            tokens,
            headroom,
            _best_level(trial),
            words(trial.minutes.total_s),
        )
    console().print(table)


def result_table(view: StudyView) -> None:
    """The end of a study on stdout: the answer, and what it was compared with."""
    out = console()
    out.print(f"[bold]{view.study_id}[/bold]  {view.model_path}{label(view)}")
    if view.incumbent is None:
        out.print(view.explanation or "nothing could be measured")
    else:
        table = plain_table("", "setting", "concurrency", "completed" + label(view))
        _add(table, "best", view.incumbent)
        if view.runner_up is not None:
            _add(table, "next", view.runner_up)
        out.print(table)
        out.print(view.explanation)
        out.print(_where(view))


def _where(view: StudyView) -> str:
    if view.unwritten is None:
        return f"written to {view.asked.get('output')}"
    return f"NOT WRITTEN: {view.unwritten}; `kvtune-auto export {view.study_id} --output FILE` writes it elsewhere"


def _add(table: Table, name: str, best: Incumbent) -> None:
    table.add_row(name, setting_words(best.setting), str(best.concurrency), rate_words(best.completion_rate))


def _best_level(trial: TrialResult) -> str:
    if trial.best_level is not None:
        return f"{rate_words(trial.best_level.completion_rate)} at {trial.best_level.concurrency}"
    return trial.failure.kind.value if trial.failure is not None else "–"
