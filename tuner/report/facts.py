"""What a report says, in sentences and rows, before any layout."""

from __future__ import annotations

import time
from dataclasses import dataclass

from launcher.failure import Failure
from launcher.redact import redact
from tuner.budget import words
from tuner.journal import StudyView
from tuner.progress.words import best_words, rate_words, setting_words
from tuner.report.advice import advice
from tuner.trial import LevelResult, TrialResult

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class FailureCard:
    """One failed start, with the lines that prove it."""

    trial_id: int
    setting: str
    what: str
    sentence: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A report without its pictures."""

    title: str
    simulated: bool
    asked: Rows
    answer: tuple[str, ...]
    """Sentences; the first is the answer itself."""
    found: bool
    levels: Rows
    """Header first."""
    hours: Rows
    """Header first: where the time went, in study time and shares of the budget."""
    failures: tuple[FailureCard, ...]
    next_steps: tuple[str, ...]
    environment: Rows
    decisions: Rows


def facts_of(view: StudyView) -> Facts:
    """Everything that the page says of a study, finished or not."""
    return Facts(
        title=f"{view.study_id}: {view.model_path}",
        simulated=view.simulated,
        asked=_asked(view),
        answer=_answer(view),
        found=view.incumbent is not None,
        levels=_levels(view),
        hours=_hours(view),
        failures=tuple(_card(trial, trial.failure) for trial in view.trials if trial.failure is not None),
        next_steps=advice(view),
        environment=_environment(view),
        decisions=tuple(
            (time.strftime("%H:%M:%S", time.localtime(one.unix_s)), one.kind, redact(one.sentence))
            for one in view.decisions
        ),
    )


def _asked(view: StudyView) -> Rows:
    asked = redact(dict(view.asked))
    rows = [("model", view.model_path), ("budget", f"{words(view.budget_s)}, {words(view.spent_s)} used")]
    space = asked.pop("space", None)
    if isinstance(space, dict):
        rows += [(f"searched: {name}", _plain(value)) for name, value in space.items()]
    for name in ("workload", "slo", "flags", "env", "max_trials", "max_crashes", "until_gain_below"):
        told = _plain(asked.get(name) or "")
        if told:
            rows.append((name.replace("_", "-"), told))
    return tuple(rows)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_plain(inner)}" for name, inner in value.items() if inner is not None)
    if isinstance(value, list | tuple):
        return ", ".join(_plain(inner) for inner in value)
    return str(value)


def _answer(view: StudyView) -> tuple[str, ...]:
    if view.incumbent is None:
        started = len(view.trials)
        return (f"No configuration could be measured in {started} start{'s' if started != 1 else ''}.",)
    label = " on the simulated engine" if view.simulated else ""
    sentences = [f"{best_words(view.incumbent)}{label}."]
    exported = view.export_setting
    if exported is not None and exported != view.incumbent.setting:
        sentences.append(f"Exported with a safety margin: {setting_words(exported)}.")
    if view.clear is False and view.runner_up is not None:
        sentences.append(f"No clear winner: {best_words(view.runner_up)} cannot be told apart from it.")
    if view.explanation:
        sentences.append(view.explanation)
    return tuple(sentences)


def _levels(view: StudyView) -> Rows:
    head = ("trial", "setting", "concurrency", "completed", "gen tokens/s", "running", "usage", "hits", "ended")
    rows = [
        (str(trial.trial_id), setting_words(trial.proposal.setting), *_level_row(level))
        for trial in view.trials
        for level in trial.levels
    ]
    return (head, *rows)


def _level_row(level: LevelResult) -> tuple[str, ...]:
    return (
        str(level.concurrency),
        rate_words(level.completion_rate),
        _number(level.gen_tokens_per_s, "{:,.0f}"),
        _number(level.running_requests, "{:.0f}"),
        _number(level.token_usage_share, "{:.2f}"),
        _number(level.cache_hit_share, "{:.0%}"),
        level.end.value.replace("_", " ") + ("" if level.steady else ", not steady"),
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _hours(view: StudyView) -> Rows:
    parts = {
        "clean slate": sum(trial.minutes.clean_slate_s for trial in view.trials),
        "starting servers": sum(trial.minutes.start_s for trial in view.trials),
        "measuring": sum(trial.minutes.measure_s for trial in view.trials),
        "stopping servers": sum(trial.minutes.stop_s for trial in view.trials),
    }
    parts["everything else"] = max(0.0, view.spent_s - sum(parts.values()))
    total_s = max(view.spent_s, 1e-9)
    rows = [(name, words(seconds), f"{seconds / total_s:.0%}") for name, seconds in parts.items()]
    return (("what", "time", "of what was used"), *rows)


def _card(trial: TrialResult, failure: Failure) -> FailureCard:
    where = "" if failure.gpu_index is None else f", GPU {failure.gpu_index}"
    kind, stage = (text.replace("_", " ") for text in (failure.kind.value, failure.stage.value))
    return FailureCard(
        trial_id=trial.trial_id,
        setting=setting_words(trial.proposal.setting),
        what=f"{kind}, at {stage}{where}; at fault: {failure.culprit.value.replace('_', ' ')}",
        sentence=redact(failure.sentence),
        lines=failure.evidence,
    )


def _environment(view: StudyView) -> Rows:
    world = view.environment
    gpus = f"{len(world.gpu_names)} × {world.gpu_names[0]}" if world.gpu_names else "none"
    rows = [
        ("SGLang", view.sglang_version or "unknown"),
        ("launch command", " ".join(world.command)),
        ("GPUs", gpus),
        ("driver", world.driver_version or ""),
        ("host", world.host_name),
        ("model fingerprint", world.model_fingerprint or "none (a name, or simulated)"),
        ("kvtune", world.kvtune_version),
        ("study directory", str(view.directory)),
    ]
    return tuple(row for row in rows if row[1])
