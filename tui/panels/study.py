"""Study panel: where the search is, its trials as a table and as points over mem-fraction and rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tui import format as fmt
from tui.panels.graph import meter
from tui.panels.look import Look, Role
from tui.panels.row import Pen, Row, clip_end, title_row
from tui.panels.scatter import scatter
from tui.snapshot import Snapshot
from tuner.trial import Interval, Setting, TrialResult, TrialState

if TYPE_CHECKING:
    from tuner.journal.view import StudyView

SCATTER_FROM = 120
"""Columns from which there is room for the points beside the table."""
TABLE_CELLS = 84
"""The table with an outcome of two or three words."""
STATE_ROLE: dict[TrialState, Role] = {
    TrialState.RUNNING: "hint",
    TrialState.MEASURED: "text",
    TrialState.FAILED: "bad",
    TrialState.INFRASTRUCTURE: "warn",
    TrialState.INTERRUPTED: "dim",
}


def study_rows(
    snapshot: Snapshot,
    width: int,
    height: int,
    look: Look,
    number: int,
    *,
    sort: str = "number",
    selected: str | None = None,
    needle: str = "",
) -> list[Row]:
    """The panel in at most `height` rows."""
    study = snapshot.study
    if study is None:
        rows = [title_row(number, "study", width, look)]
        return [
            *rows,
            Pen(width).gap(2).put("no study runs here (kvtune-auto, or --study DIR)", "dim").row(),
        ][:height]
    rows = [_title(study, width, look, number), _progress(study, snapshot.taken_unix_s, width, look)]
    rows += [_incumbent(study, width), *_troubles(study, width)]
    room = height - len(rows)
    if room < 2:
        return rows[:height]
    aside = min(width // 3, width - TABLE_CELLS - 4) if width >= SCATTER_FROM else 0
    table = _table(study, width - aside - (4 if aside else 0), room, sort, selected, needle)
    points = scatter(study, aside, room, look) if aside else []
    return (rows + _beside(table, points, width - aside, width))[:height]


def _title(study: StudyView, width: int, look: Look, number: int) -> Row:
    trials = len(study.trials)
    told = [study.state.value, f"{trials} trial{'' if trials == 1 else 's'}"]
    if study.simulated:
        told.insert(0, "simulated engine")
    return title_row(number, f"study {study.study_id}", width, look, "  ".join(told))


def _progress(study: StudyView, now_unix_s: float, width: int, look: Look) -> Row:
    """Budget first, then what the daemon is doing and for how long still."""
    spent_s = spent_at(study, now_unix_s)
    pen = Pen(width).put("  budget ", "dim")
    for text, role in meter(spent_s / study.budget_s if study.budget_s else None, 16, "kv_used", look):
        pen.put(text, role)
    pen.put(f" {fmt.span(spent_s)}", "text").put(f" of {fmt.span(study.budget_s)}  ", "dim")
    pen.put(clip_end(_stage(study, now_unix_s), pen.left), "hint")
    return pen.row()


def spent_at(study: StudyView, now_unix_s: float) -> float:
    """Study seconds spent at this moment: the journal's figure is seconds old, and a simulated clock is fast."""
    if study.spent_at_unix_s is None or study.state.value != "running":
        return study.spent_s
    return study.spent_s + max(0.0, now_unix_s - study.spent_at_unix_s) * study.clock_speed


def _stage(study: StudyView, now_unix_s: float) -> str:
    stage = study.stage
    if stage is None:
        return "" if study.state.value == "done" else "between trials"
    words = [stage.name]
    if stage.trial_id is not None:
        words.append(f"trial {stage.trial_id}")
    if stage.concurrency is not None:
        words.append(f"at concurrency {stage.concurrency}")
    if stage.since_unix_s is not None:
        been_s = max(0.0, (now_unix_s - stage.since_unix_s) * study.clock_speed)
        left = "" if stage.expected_s is None else f" of about {fmt.span(stage.expected_s)}"
        words.append(f"for {fmt.span(been_s)}{left}")
    return " ".join(words) + (f": {stage.detail}" if stage.detail else "")


def _incumbent(study: StudyView, width: int) -> Row:
    best = study.incumbent
    pen = Pen(width).put("  best   ", "dim")
    if best is None:
        return pen.put("nothing measured yet", "dim").row()
    pen.put(interval(best.completion_rate), "finished").put(" tok/s finished  ", "dim")
    pen.put(clip_end(f"{setting(best.setting)} at concurrency {best.concurrency}", pen.left), "strong")
    pen.whole((f"  (trial {best.trial_id})", "dim"))
    return pen.row(("trial", str(best.trial_id)))


def _troubles(study: StudyView, width: int) -> list[Row]:
    """The answer that could not be written, and the last failure."""
    told = (("  unwritten ", study.unwritten, "bad"), ("  failed ", study.last_failure, "warn"))
    rows = []
    for what, sentence, role in told:
        if sentence:
            pen = Pen(width).put(what, "dim")
            rows.append(pen.put(clip_end(sentence, pen.left), role).row())
    return rows


def interval(value: Interval) -> str:
    return f"{fmt.rate(value.value)} ± {fmt.rate(value.half_width)}"


def setting(value: Setting) -> str:
    """`0.88 bfloat16 HiCache 48`: one start's knobs in a few words."""
    words = [
        f"{value.mem_fraction_static:g}" if value.mem_fraction_static is not None else "default fraction",
        value.kv_cache_dtype,
        f"HiCache {value.hicache_size_gb}" if value.hicache_size_gb else "",
        *(f"{name} {flag}" for name, flag in value.flags.items()),
    ]
    return " ".join(word for word in words if word)


def sorted_trials(study: StudyView, sort: str, needle: str = "") -> list[TrialResult]:
    """Trials by number (newest first), by rate or by mem-fraction; `needle` filters by setting, state and failure."""
    wanted = [trial for trial in study.trials if needle.lower() in described(trial).lower()]
    if sort == "finished tok/s":
        return sorted(wanted, key=lambda trial: -_rate(trial))
    if sort == "mem-fraction":
        return sorted(wanted, key=lambda trial: trial.proposal.setting.mem_fraction_static or 0.0)
    return sorted(wanted, key=lambda trial: -trial.trial_id)


def _rate(trial: TrialResult) -> float:
    return trial.best_level.completion_rate.value if trial.best_level else -1.0


def described(trial: TrialResult) -> str:
    failure = f" {trial.failure.kind.value} {trial.failure.sentence}" if trial.failure else ""
    return f"{setting(trial.proposal.setting)} {trial.state.value} {trial.proposal.purpose.value}{failure}"


def _table(study: StudyView, width: int, room: int, sort: str, selected: str | None, needle: str) -> list[Row]:
    head = Pen(width).put("    # mem-fraction  dtype     HiCache  conc", "dim")
    head.put("   finished tok/s least free  outcome", "dim").right(f"by {sort}", "faint")
    trials = sorted_trials(study, sort, needle)
    first = _first(trials, selected, room - 1)
    rows = [_trial(study, trial, width, selected) for trial in trials[first : first + room - 1]]
    return [head.row(), *rows]


def _first(trials: Sequence[TrialResult], selected: str | None, room: int) -> int:
    """Scrolled so that the selected trial is in sight."""
    place = next((i for i, trial in enumerate(trials) if str(trial.trial_id) == selected), 0)
    return max(0, place - room + 1)


def _trial(study: StudyView, trial: TrialResult, width: int, selected: str | None) -> Row:
    knobs = trial.proposal.setting
    is_best = study.incumbent is not None and study.incumbent.trial_id == trial.trial_id
    role = "finished" if is_best else STATE_ROLE[trial.state]
    chosen = str(trial.trial_id) == selected
    pen = Pen(width).put(">" if chosen else " ", "key").put(f"{trial.trial_id:>4} ", "selected" if chosen else "dim")
    fraction = fmt.UNKNOWN if knobs.mem_fraction_static is None else f"{knobs.mem_fraction_static:.3f}"
    pen.put(f"{fraction:>12}  {knobs.kv_cache_dtype:<9.9} {knobs.hicache_size_gb or 'off':>7}", "text")
    pen.put(f"{_concurrency(study, trial):>6}", "text")
    pen.put(f"{_finished(study, trial):>17}", role)
    headroom = fmt.UNKNOWN if trial.headroom_min_gib is None else f"{trial.headroom_min_gib:.1f} GiB"
    pen.put(f"{headroom:>11}  ", "text").put(outcome(trial, is_best), role)
    return pen.row(("trial", str(trial.trial_id)))


def _finished(study: StudyView, trial: TrialResult) -> str:
    """The leader's is the verdict's (all its measurements together), as in the line above; else the best level's."""
    if study.incumbent is not None and study.incumbent.trial_id == trial.trial_id:
        return interval(study.incumbent.completion_rate)
    return interval(trial.best_level.completion_rate) if trial.best_level else fmt.UNKNOWN


def _concurrency(study: StudyView, trial: TrialResult) -> str:
    """The verdict's, the best level's, or the one that is being measured."""
    if study.incumbent is not None and study.incumbent.trial_id == trial.trial_id:
        return str(study.incumbent.concurrency)
    if trial.best_level is not None:
        return str(trial.best_level.concurrency)
    stage = study.stage
    if stage is not None and stage.trial_id == trial.trial_id and stage.concurrency is not None:
        return str(stage.concurrency)
    return fmt.UNKNOWN


def outcome(trial: TrialResult, is_best: bool = False) -> str:
    if is_best:
        return "best so far"
    if trial.failure is not None:
        return trial.failure.kind.value.replace("_", " ")
    return trial.state.value if trial.state is not TrialState.MEASURED else trial.proposal.purpose.value


def _beside(left: list[Row], right: list[Row], column: int, width: int) -> list[Row]:
    rows = []
    for y in range(max(len(left), len(right))):
        pen = Pen(width)
        target = left[y].target if y < len(left) else None
        for part, at in ((left, 0), (right, column)):
            if y < len(part):
                pen.to(at).extend(part[y].spans)
        rows.append(pen.row(target))
    return rows
