"""Looking at studies: list, show, status, log, compare. They read the journal and disturb nobody."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher import exits
from tuner.budget import words

if TYPE_CHECKING:
    from tuner.journal import StudyView

_FOLLOW_S = 1.0

_study = click.argument("study", required=False)
_json = click.option("--json", "as_json", is_flag=True, help="For machines.")


@click.command("list")
@_json
def list_studies(as_json: bool) -> None:
    """All studies of this user, in the order of their last run."""
    from tuner.journal import find_studies

    views = list(_readable(find_studies()))
    if as_json:
        _print_json({"schema_version": 1, "studies": [_summary(view) for view in views]})
        return
    from tuner.cli.tables import studies_table

    studies_table(views)


@click.command()
@_study
@_json
def show(study: str | None, as_json: bool) -> None:
    """One study's trials: setting, memory, best level, or why it failed. Default: the newest."""
    view = _read(study)
    if as_json:
        _print_json({**_summary(view), "trials": list(view.trials), "explanation": view.explanation})
        return
    from tuner.cli.tables import result_table, trials_table

    trials_table(view)
    result_table(view)


@click.command()
@_study
@_json
def status(study: str | None, as_json: bool) -> None:
    """What the daemon does at this moment. Default: the newest study."""
    view = _read(study)
    if as_json:
        _print_json(_summary(view))
        return
    from tuner.cli.tables import label

    print(f"study    {view.study_id}{label(view)}")
    running = f" (process {view.daemon_pid})" if view.daemon_pid else ""
    print(f"state    {view.state.value}{running}" + (f": {view.ended}" if view.ended else ""))
    print(f"budget   {words(view.spent_s)} of {words(view.budget_s)} used")
    for name, text in _now(view):
        print(f"{name:<8} {text}")


@click.command()
@_study
@click.option("-f", "--follow", is_flag=True, help="Go on until the daemon ends.")
def log(study: str | None, follow: bool) -> None:
    """Everything that was decided and met, one line each. Default: the newest study."""
    view = _read(study)
    shown = 0
    while True:
        for decision in view.decisions[shown:]:
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.unix_s))
            about = "" if decision.trial_id is None else f"trial {decision.trial_id}: "
            print(f"{moment}  {decision.kind:<9} {about}{decision.sentence}", flush=True)
        shown = len(view.decisions)
        if not follow or view.daemon_pid is None:
            return
        time.sleep(_FOLLOW_S)
        view = _read(str(view.directory))


@click.command()
@click.argument("studies", nargs=-1, required=True)
def compare(studies: tuple[str, ...]) -> None:
    """Several studies side by side, and whether they may be compared at all."""
    from tuner.cli.tables import console, label, plain_table
    from tuner.progress.words import rate_words, setting_words

    views = [_read(name) for name in studies]
    table = plain_table("study", "SGLang", "GPUs", "workload", "setting", "concurrency", "completed")
    for view in views:
        best = view.incumbent
        answer = ("–", "–", "nothing measured")
        if best is not None:
            rate = rate_words(best.completion_rate) + label(view)
            answer = (setting_words(best.setting), str(best.concurrency), rate)
        table.add_row(view.study_id, view.sglang_version or "?", _gpus(view), str(view.asked.get("workload")), *answer)
    console().print(table)
    for difference in _differences(views):
        print(difference, file=sys.stderr)


def _readable(directories: tuple[Path, ...]) -> Iterator[StudyView]:
    """One damaged study must not hide the others."""
    from tuner.errors import JournalError
    from tuner.journal import read_study

    for directory in directories:
        try:
            yield read_study(directory)
        except JournalError as error:
            exits.say(f"kvtune-auto: {error}")


def _read(study: str | None) -> StudyView:
    from tuner.journal import find_study, read_study

    return read_study(find_study(study))


def _now(view: StudyView) -> list[tuple[str, str]]:
    from tuner.progress.words import best_words, setting_words

    lines = []
    if view.stage is not None:
        at = f" concurrency {view.stage.concurrency}" if view.stage.concurrency else ""
        lines.append(("stage", f"{view.stage.name}{at} {view.stage.detail}".rstrip()))
    if view.trials:
        last = view.trials[-1]
        lines.append(("trial", f"{last.trial_id}: {setting_words(last.proposal.setting)} ({last.state.value})"))
    if view.incumbent is not None:
        lines.append(("best", best_words(view.incumbent)))
    if view.last_failure is not None:
        lines.append(("failure", view.last_failure))
    return lines


def _summary(view: StudyView) -> dict[str, object]:
    return {
        "schema_version": 1,
        "study_id": view.study_id,
        "directory": str(view.directory),
        "model_path": view.model_path,
        "simulated": view.simulated,
        "state": view.state.value,
        "ended": view.ended,
        "budget_s": view.budget_s,
        "spent_s": view.spent_s,
        "trials_begun": len(view.trials),
        "daemon_pid": view.daemon_pid,
        "stage": view.stage,
        "incumbent": view.incumbent,
        "clear_winner": view.clear,
        "unwritten": view.unwritten,
        "last_failure": view.last_failure,
    }


def _gpus(view: StudyView) -> str:
    names = view.environment.gpu_names
    return f"{len(names)} × {names[0]}" if names else "none"


def _differences(views: list[StudyView]) -> list[str]:
    """Sentences on what makes the rates incomparable."""
    told: dict[str, set[object]] = {
        "SGLang versions": {view.sglang_version for view in views},
        "models": {(view.model_path, view.environment.model_fingerprint) for view in views},
        "GPUs": {view.environment.gpu_names for view in views},
        "workloads": {str(view.asked.get("workload")) for view in views},
        "engines (real and simulated)": {view.simulated for view in views},
    }
    return [f"not comparable: the studies have different {what}" for what, kinds in told.items() if len(kinds) > 1]


def _print_json(value: object) -> None:
    from tuner.journal.codec import encode

    print(json.dumps(json.loads(encode(value)), indent=2))
