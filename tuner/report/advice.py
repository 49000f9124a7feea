"""What to do next, from what the study met."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from launcher.failure import Culprit, Direction
from tuner.journal import StudyView
from tuner.journal.view import Incumbent, StudyState
from tuner.progress.words import doubt_words
from tuner.trial import LevelEnd, LevelResult

FULL_USAGE = 0.9
"""From here on the KV pool binds: SGLang keeps some tokens back for what runs."""


def advice(view: StudyView) -> tuple[str, ...]:
    """Sentences, the most useful first."""
    return tuple(_advice(view))


def _advice(view: StudyView) -> Iterator[str]:
    if view.state is StudyState.INTERRUPTED:
        yield f"Go on where it stopped: kvtune-auto --resume {view.study_id}"
    if view.incumbent is None:
        yield from _nothing_measured(view)
    else:
        yield from _after_an_answer(view, view.incumbent)
    if any(trial.failure and trial.failure.culprit is Culprit.INFRASTRUCTURE for trial in view.trials):
        yield "Some starts failed through no fault of their configuration: look at the machine before more time."
    if view.simulated:
        yield "These numbers are simulated: run the study with --model on the box itself."


def _nothing_measured(view: StudyView) -> Iterator[str]:
    """Every failure says which way its knob must move."""
    low, high = _bounds(view, "mem-fraction-static")
    ways = [trial.failure.mem_fraction_direction for trial in view.trials if trial.failure is not None]
    if Direction.DOWN in ways and Direction.UP in ways:
        yield "Both ends of mem-fraction-static fail: use more GPUs, a smaller model, or a smaller prefill chunk."
    elif Direction.DOWN in ways:
        yield f"Widen the search downwards: mem-fraction-static below {low:g}, or a smaller chunked-prefill-size."
    elif Direction.UP in ways:
        yield f"Widen the search upwards: mem-fraction-static above {high:g}; the weights leave no room below."
    elif not view.trials:
        yield "Give it more time: no start fitted into the budget."
    else:
        yield "Start one configuration by hand with the launch command below and read its log."


def _after_an_answer(view: StudyView, best: Incumbent) -> Iterator[str]:
    yield f"Use it: {_command(view)} --config {view.asked.get('output', 'best-config.yaml')}"
    yield f"Keep {best.concurrency} requests in flight on the client's side; that is no SGLang flag."
    doubt = doubt_words(best.completion_rate)
    if doubt is not None:
        yield f"Do not rely on it: {doubt}."
    elif view.clear is False and view.runner_up is not None:
        yield "The noise cannot tell the two best apart: more budget could, or take the safer one that was exported."
    if best.concurrency >= _bounds(view, "concurrency")[1]:
        yield f"The best concurrency is the highest that was allowed ({best.concurrency}): allow more."
    level = _level_of(view, best)
    if level is not None:
        yield from _about(level, view)


def _command(view: StudyView) -> str:
    return shlex.join(view.environment.command or ("python", "-m", "sglang.launch_server"))


def _about(level: LevelResult, view: StudyView) -> Iterator[str]:
    full = (level.token_usage_share or 0.0) >= FULL_USAGE
    dtypes = _space(view).get("kv-cache-dtype") or ["bfloat16"]
    if full and list(dtypes) == ["bfloat16"]:
        yield (
            "The KV pool is what binds. An FP8 KV cache would hold twice the tokens, but may cost quality:"
            " it was not tried, because it is not on the allowlist (space: kv-cache-dtype)."
        )
    if level.retracted_share is not None and level.retracted_share > 0.02:
        yield f"{level.retracted_share:.0%} of the requests were retracted at the best level: fewer clients are calmer."
    if not level.steady or level.end is LevelEnd.TIME:
        yield "The best level was not measured to the end: a longer budget narrows its interval."


def _level_of(view: StudyView, best: Incumbent) -> LevelResult | None:
    levels = [
        level
        for trial in view.trials
        for level in trial.levels
        if trial.trial_id == best.trial_id and level.concurrency == best.concurrency
    ]
    return levels[-1] if levels else None


def _space(view: StudyView) -> dict[str, Any]:
    space = view.asked.get("space")
    return dict(space) if isinstance(space, dict) else {}


def _bounds(view: StudyView, name: str) -> tuple[float, float]:
    """Of a searched knob; what SGLang and the search allow where the study does not say."""
    told = _space(view).get(name)
    if isinstance(told, list | tuple):
        return float(told[0]), float(told[-1])
    if isinstance(told, int | float):
        return float(told), float(told)
    return (0.0, 1.0) if name == "mem-fraction-static" else (1.0, float("inf"))
