"""The contest in tables: one row per method, and the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.contest.race import CHECKPOINTS, Score
from bench.contest.rivals import Default
from bench.figures import figure

NEVER = 99.0
"""Stands for "not within the budget" in medians."""
KVTUNE, BLACK_BOX = "kvtune", "kvtune --black-box"
RECORDED = "_recorded"
"""Suffix of the figures from a real server's recording; those without it are from the simulated engine."""


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def relaunches_p50(scores: Sequence[Score]) -> float:
    return statistics.median_high([score.relaunches_to_goal or NEVER for score in scores])


def worst_share(scores: Sequence[Score]) -> float:
    return min(score.final_share for score in scores)


def median_share(scores: Sequence[Score]) -> float:
    return statistics.median(score.final_share for score in scores)


def crashes_mean(scores: Sequence[Score]) -> float:
    return statistics.fmean(score.crashes for score in scores)


def print_table(title: str, groups: Sequence[tuple[str, Sequence[Score]]]) -> None:
    """Medians over all cases and seeds; the spread is the range between the 10% and the 90% quantile."""
    print(f"\n{title}")
    shares = "".join(f"{f'@{count}':>6}" for count in CHECKPOINTS)
    print(
        f"{'method':24}{'starts':>7}{'to97':>6}{'min97':>7}{'reach':>6}{shares}"
        f"{'2h p50':>8}{'p10-p90':>12}{'worst':>7}{'crash':>7}"
    )
    for name, scores in groups:
        print(_row(name, scores))


def _row(name: str, scores: Sequence[Score]) -> str:
    reached = sum(score.relaunches_to_goal is not None for score in scores) / len(scores)
    minutes = statistics.median_high([score.minutes_to_goal or NEVER * 60 for score in scores])
    final = [score.final_share for score in scores]
    shares = "".join(f"{statistics.median(score.share_after(count) for score in scores):6.2f}" for count in CHECKPOINTS)
    starts = statistics.fmean(len(score.steps) for score in scores)
    return (
        f"{name:24}{starts:7.1f}{_never(relaunches_p50(scores), NEVER):>6}{_never(minutes, NEVER * 60):>7}"
        f"{100 * reached:5.0f}%{shares}{statistics.median(final):8.3f}"
        f"{f'{quantile(final, 0.1):.2f}-{quantile(final, 0.9):.2f}':>12}{min(final):7.2f}"
        f"{crashes_mean(scores):7.2f}"
    )


def _never(value: float, never: float) -> str:
    return "never" if value >= never else f"{value:.0f}"


def minutes_saved(with_it: Sequence[Score], without: Sequence[Score]) -> list[float]:
    """By how many minutes the first of each pair was sooner at its goal, where both reached it."""
    other = {(score.case, score.seed): score.minutes_to_goal for score in without}
    return [
        late - score.minutes_to_goal
        for score in with_it
        if score.minutes_to_goal is not None and (late := other.get((score.case, score.seed))) is not None
    ]


def print_cases(scores: Sequence[Score]) -> None:
    """kvtune by case, so that no case hides in a mean."""
    cases = sorted({score.case for score in scores})
    print_table("kvtune by case", [(_short(case), [s for s in scores if s.case == case]) for case in cases])


def _short(case: str) -> str:
    preset, workload, allowed = case.split(" / ")
    return f"{preset[:10]} {workload[:6]} {allowed[:8]}"


def print_figures(scores: Sequence[Score], suffix: str = "") -> None:
    """The headline, the same for the best rival by that very measure, and for the black box.

    SGLang's default does not search and so never crashes: it stands in the table, but is no rival here.
    """
    measures: tuple[tuple[str, Callable[[Sequence[Score]], float], str, bool], ...] = (
        ("relaunches_to_97_p50", relaunches_p50, "relaunches", False),
        ("oracle_share_2h_worst", worst_share, "share", True),
        ("oracle_share_2h_p50", median_share, "share", True),
        ("crashes_per_study", crashes_mean, "crashes", False),
    )
    rivals = sorted({score.method for score in scores} - {KVTUNE, BLACK_BOX, Default.name})
    for name, measure, unit, higher in measures:
        by_rival = [measure(_of(scores, rival)) for rival in rivals]
        figure(f"{name}{suffix}", measure(_of(scores, KVTUNE)), unit)
        figure(f"{name}{suffix}_best_opponent", max(by_rival) if higher else min(by_rival), unit)
        figure(f"{name}{suffix}_black_box", measure(_of(scores, BLACK_BOX)), unit)


def _of(scores: Sequence[Score], method: str) -> list[Score]:
    return [score for score in scores if score.method == method]
