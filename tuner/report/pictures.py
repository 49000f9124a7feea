"""The report's pictures, by matplotlib, as SVG text. Each is None where the study has nothing to show in it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tuner.journal import StudyView
from tuner.trial import LevelResult, Setting, TrialResult

HIGHEST_SHARE = 1.4
"""Of the highest rate: where the axis of rates ends."""
WIDTH_IN = 4.5
"""Small enough that its letters are still read on a telephone, where the picture is as wide as the screen."""
CRASH = "tab:red"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvtune",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One level with the trial it belongs to and the moment of its end, in study minutes."""

    trial: TrialResult
    level: LevelResult
    at_min: float


def pictures_of(view: StudyView) -> dict[str, list[Picture]]:
    """By section of the page: progress, knobs, boundary, hours, memory."""
    with mpl.rc_context(_STYLE):
        return {
            "progress": _some(_progress(view)),
            "knobs": [picture for knob in _knobs(view) for picture in _some(_against(view, *knob))],
            "boundary": _some(_boundary(view)),
            "hours": _some(_timeline(view)),
            "memory": _some(_memory(view)),
        }


def _some(picture: Picture | None) -> list[Picture]:
    return [] if picture is None else [picture]


def _drawn(title: str, caption: str, draw: Callable[[Axes], None], height_in: float = 2.8) -> Picture:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    draw(figure.add_subplot())
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return Picture(title, caption, text.getvalue())


def _measured(view: StudyView) -> list[Measured]:
    found, begun_s = [], 0.0
    for trial in view.trials:
        at_s = begun_s + trial.minutes.clean_slate_s + trial.minutes.start_s
        for level in trial.levels:
            at_s += level.spent_s
            found.append(Measured(trial, level, at_s / 60))
        begun_s += trial.minutes.total_s
    return found


def _crashes(view: StudyView) -> list[tuple[float, TrialResult]]:
    """Failed starts with the study minute at which they ended."""
    ends, begun_s = [], 0.0
    for trial in view.trials:
        begun_s += trial.minutes.total_s
        if trial.failure is not None:
            ends.append((begun_s / 60, trial))
    return ends


def _errors(points: Sequence[Measured]) -> tuple[list[float], list[float]]:
    """Half widths below and above, for error bars; an unknown bound is drawn as the estimate itself."""
    rates = [point.level.completion_rate for point in points]
    finite = [(max(0.0, min(rate.low, rate.value)), min(rate.high, 2 * rate.value)) for rate in rates]
    pairs = list(zip(rates, finite, strict=True))
    return [rate.value - low for rate, (low, _) in pairs], [high - rate.value for rate, (_, high) in pairs]


def _bars(axes: Axes, xs: Sequence[float], points: Sequence[Measured], **style: object) -> None:
    ys = [point.level.completion_rate.value for point in points]
    axes.errorbar(xs, ys, yerr=_errors(points), fmt="o", ms=5, capsize=2, **style)  # type: ignore[arg-type]


def _scale(axes: Axes, points: Sequence[Measured]) -> None:
    """From zero to above the highest rate: the bar of a hardly known one must not flatten all others."""
    highest = max((point.level.completion_rate.value for point in points), default=0.0)
    axes.set_ylim(0, HIGHEST_SHARE * highest or None)


def _progress(view: StudyView) -> Picture | None:
    points, crashes = _measured(view), _crashes(view)
    if not points:
        return None

    def draw(axes: Axes) -> None:
        minutes = [point.at_min for point in points]
        _bars(axes, minutes, points, color="tab:gray", label="a level, 95%")
        best = list(itertools.accumulate((point.level.completion_rate.value for point in points), max))
        axes.step(minutes, best, where="post", color="tab:blue", lw=2, label="best so far")
        if crashes:
            minutes = [at for at, _ in crashes]
            axes.plot(
                minutes, [0.0] * len(minutes), "x", color=CRASH, ms=9, mew=2, label="a start failed", clip_on=False
            )
        axes.set(xlabel="minutes of the study", ylabel="completed tokens/s")
        axes.set_xlim(0, max(view.spent_s / 60, 1e-3))
        _scale(axes, points)
        axes.legend(fontsize=8, loc="best")

    return _drawn("Progress", "Every level as it was measured, and the best so far.", draw)


def _knobs(view: StudyView) -> Iterator[tuple[str, Callable[[Measured], float | str]]]:
    """The knobs of which at least two values were measured."""
    readings: dict[str, Callable[[Measured], float | str]] = {
        "concurrency": lambda point: point.level.concurrency,
        "mem-fraction-static": lambda point: point.trial.proposal.setting.mem_fraction_static or 0.0,
        "kv-cache-dtype": lambda point: point.trial.proposal.setting.kv_cache_dtype,
        "hicache-size (GB per rank)": lambda point: str(point.trial.proposal.setting.hicache_size_gb),
    }
    for name in _flag_names(view):
        readings[name] = lambda point, name=name: str(point.trial.proposal.setting.flags.get(name))  # type: ignore[misc]
    points = _measured(view)
    for name, read in readings.items():
        if len({read(point) for point in points}) > 1:
            yield name, read


def _flag_names(view: StudyView) -> list[str]:
    return sorted({name for trial in view.trials for name in trial.proposal.setting.flags})


def _against(view: StudyView, name: str, read: Callable[[Measured], float | str]) -> Picture | None:
    points = _measured(view)

    def draw(axes: Axes) -> None:
        for colour, group in _by_family(points, apart_from=name):
            values = [read(point) for point in group]
            _bars(axes, values, group, color=colour[1], label=colour[0], alpha=0.85)  # type: ignore[arg-type]
        axes.set(xlabel=name, ylabel="completed tokens/s")
        _scale(axes, points)
        axes.legend(fontsize=8, loc="best")

    return _drawn(f"Rate against {name}", "Each point is one level; the bar is its 95% interval.", draw)


def _by_family(points: Sequence[Measured], apart_from: str) -> Iterator[tuple[tuple[str, str], list[Measured]]]:
    """Points in at most six groups by setting, so that a line of one colour is one thing."""
    names = dict.fromkeys(_family(point.trial.proposal.setting, apart_from) for point in points)
    for at, name in enumerate(names):
        group = [point for point in points if _family(point.trial.proposal.setting, apart_from) == name]
        yield (name, f"C{at % 10}"), group


def _family(setting: Setting, apart_from: str) -> str:
    parts = [] if apart_from == "kv-cache-dtype" else [setting.kv_cache_dtype]
    if setting.hicache_size_gb and not apart_from.startswith("hicache"):
        parts.append(f"hicache {setting.hicache_size_gb} GB")
    return " ".join(parts) or "all"


def _boundary(view: StudyView) -> Picture | None:
    fractions = [trial.proposal.setting.mem_fraction_static for trial in view.trials]
    if not view.boundary and not any(fraction is not None for fraction in fractions):
        return None

    def draw(axes: Axes) -> None:
        dtypes = dict.fromkeys(point.kv_cache_dtype for point in view.boundary)
        for at, dtype in enumerate(dtypes):
            curve = [point for point in view.boundary if point.kv_cache_dtype == dtype]
            xs, ys = [p.mem_fraction_static for p in curve], [p.survival_probability for p in curve]
            axes.plot(xs, ys, color=f"C{at}", lw=2, label=f"chance to survive, {dtype}")
        _starts(axes, view)
        axes.set(xlabel="mem-fraction-static", ylabel="chance to survive every stage")
        axes.set_ylim(-0.05, 1.05)
        axes.legend(fontsize=8, loc="best")

    caption = "The learned boundary. Dots: starts that lived; crosses: starts that failed by their configuration."
    return _drawn("Memory boundary", caption, draw)


def _starts(axes: Axes, view: StudyView) -> None:
    lived, died = [], []
    for trial in view.trials:
        fraction = trial.proposal.setting.mem_fraction_static
        if fraction is None:
            continue
        if trial.failure is not None and trial.failure.teaches:
            died.append(fraction)
        elif trial.levels:
            lived.append(fraction)
    if lived:
        axes.plot(lived, [1.0] * len(lived), "o", color="tab:green", ms=7, label="lived", clip_on=False)
    if died:
        axes.plot(died, [0.0] * len(died), "x", color=CRASH, ms=9, mew=2, label="failed", clip_on=False)


def _timeline(view: StudyView) -> Picture | None:
    if not any(trial.minutes.total_s for trial in view.trials):
        return None

    def draw(axes: Axes) -> None:
        begun_min = 0.0
        for row, trial in enumerate(view.trials):
            for name, colour, seconds in _parts(trial):
                axes.barh(row, seconds / 60, left=begun_min, color=colour, label=name if row == 0 else None)
                begun_min += seconds / 60
            if trial.failure is not None:
                axes.plot(begun_min, row, "x", color=CRASH, ms=8, mew=2, clip_on=False)
        axes.set_yticks(range(len(view.trials)), [f"trial {trial.trial_id}" for trial in view.trials])
        axes.invert_yaxis()
        axes.set_xlim(0, max(view.spent_s / 60, begun_min, 1e-3))
        axes.set_xlabel("minutes of the study")
        axes.legend(fontsize=8, loc="best")

    height_in = 1.4 + 0.26 * len(view.trials)
    return _drawn("Where the time went", "One row per start; a cross is a failure.", draw, height_in)


def _parts(trial: TrialResult) -> tuple[tuple[str, str, float], ...]:
    """What a trial's time is made of, in order: name, colour, study seconds."""
    minutes = trial.minutes
    return (
        ("clean slate", "tab:gray", minutes.clean_slate_s),
        ("start", "tab:orange", minutes.start_s),
        ("measure", "tab:blue", minutes.measure_s),
        ("stop", "tab:purple", minutes.stop_s),
    )


def _memory(view: StudyView) -> Picture | None:
    """The winner's start, or the last one that got so far: what lay on each GPU when it was fullest."""
    trial = _shown_trial(view)
    if trial is None or trial.timeline is None or not view.environment.gpu_memory_bytes:
        return None
    memory = trial.timeline.memory
    parts = [("weights", memory.weights_gib), ("KV cache", memory.kv_cache_gib), ("graphs", memory.graphs_gib)]
    known = [(name, gib) for name, gib in parts if gib]
    totals = [size / GIB for size in view.environment.gpu_memory_bytes]
    free = _least_free_gib(trial)

    def draw(axes: Axes) -> None:
        gpus = range(len(totals))
        bottoms = [0.0] * len(totals)
        for name, gib in known:
            axes.bar(gpus, [gib] * len(totals), bottom=bottoms, label=name)
            bottoms = [bottom + gib for bottom in bottoms]
        if free:
            rest = [max(0.0, totals[gpu] - bottoms[gpu] - free.get(gpu, 0.0)) for gpu in gpus]
            axes.bar(gpus, rest, bottom=bottoms, label="context, workspaces, activations", color="tab:gray")
            bottoms = [bottom + more for bottom, more in zip(bottoms, rest, strict=True)]
        left = [max(0.0, total - bottom) for total, bottom in zip(totals, bottoms, strict=True)]
        axes.bar(
            gpus, left, bottom=bottoms, label="free at the fullest moment" if free else "other and free", color="0.9"
        )
        # A single GPU's bar must not be as wide as the picture.
        axes.set(xlabel="GPU", ylabel="GiB", xticks=list(gpus), xlim=(-0.6, max(len(totals), 4) - 0.4))
        axes.set_axisbelow(True)
        # Above the bars: they reach to the top.
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    caption = f"Trial {trial.trial_id}. Weights, KV cache and graphs as the poorest rank's log gave them."
    return _drawn("Memory of each GPU", caption, draw, 3.6)


def _shown_trial(view: StudyView) -> TrialResult | None:
    if view.incumbent is not None:
        return next((one for one in view.trials if one.trial_id == view.incumbent.trial_id), None)
    started = [one for one in view.trials if one.timeline and one.timeline.memory.weights_gib]
    return started[-1] if started else None


def _least_free_gib(trial: TrialResult) -> dict[int, float]:
    least: dict[int, float] = {}
    for level in trial.levels:
        for gpu, gib in level.headroom_min_gib.items():
            least[gpu] = min(gib, least.get(gpu, gib))
    return least
