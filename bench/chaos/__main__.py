"""At least a hundred studies in chaos: `python -m bench.chaos [--studies N] [--seed S] [--at-once K]`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.chaos.torment import Outcome, run_calmly, run_in_chaos
from bench.figures import figure
from tuner.study_file import Study, build_study

PRESET = Path(__file__).with_name("small-box.yaml")
SPEED = 100.0
_KINDS: tuple[dict[str, object], ...] = (
    # Each has one lever that decides, so that the winner is no matter of noise.
    {"mem-fraction-static": 0.8, "max-total-tokens": [8_000, 60_000], "concurrency": 16},
    {"mem-fraction-static": 0.6, "max-total-tokens": [60_000, 6_000], "concurrency": 16},
    {"mem-fraction-static": 0.7, "max-total-tokens": 60_000, "concurrency": [4, 16]},
)


def study_of(kind: int, output: Path) -> Study:
    """One of the small studies: three starts, decided by trials and not by time."""
    return build_study(
        {
            "engine": "simulated",
            "preset": str(PRESET),
            "clock_speed": SPEED,
            "sglang_version": "0.5.17",
            "space": _KINDS[kind],
            "workload": "random:in=800,out=150,cv=0.2",
            "budget": "1h",
            "max_trials": 3,
            # A study must find what its twin found by itself.
            "warm_start": False,
            "output": str(output),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=106)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=6)
    told = parser.parse_args()
    # A forked daemon is warned of threads that this process does not have.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with tempfile.TemporaryDirectory(prefix="kvtune-chaos-") as home:
        os.environ["KVTUNE_HOME"] = home
        _run(told.studies, told.seed, told.at_once, Path(home))


def _run(studies: int, seed: int, at_once: int, home: Path) -> None:
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(at_once, mp_context=fork) as pool:
        kinds = range(len(_KINDS))
        calm = [pool.submit(run_calmly, study_of(kind, home / f"calm-{kind}.yaml"), kind) for kind in kinds]
        twins = [future.result() for future in calm]
        for twin in twins:
            print(f"undisturbed: {twin.levels} levels in {twin.took_s:.1f} s, winner {twin.winner}", flush=True)
        struck = [
            pool.submit(
                run_in_chaos,
                study_of(number % len(_KINDS), home / f"best-{number}.yaml"),
                seed * 10_000 + number,
                twins[number % len(_KINDS)].took_s,
            )
            for number in range(studies)
        ]
        outcomes = [future.result() for future in struck]
    _report(twins, outcomes)


def _report(twins: list[Outcome], outcomes: list[Outcome]) -> None:
    strikes = Counter(strike.split(" (")[0] for outcome in outcomes for strike in outcome.strikes)
    print("strikes: " + ", ".join(f"{count} x {name}" for name, count in sorted(strikes.items())))
    differing = [
        outcome for number, outcome in enumerate(outcomes) if not _same_answer(outcome, twins[number % len(twins)])
    ]
    for outcome in outcomes:
        if outcome.left or outcome.lost or outcome.tracebacks or not outcome.ended or outcome in differing:
            print(f"seed {outcome.seed}: {outcome}")
    resumed = sum(outcome.runs > 1 for outcome in outcomes)
    print(f"{resumed} studies were resumed, {sum(outcome.levels for outcome in outcomes)} levels finished")
    print(f"{sum(outcome.tracebacks for outcome in outcomes)} runs ended in a traceback")
    took_s = [outcome.took_s for outcome in outcomes]
    print(f"a study took {statistics.median(took_s):.1f} s at the median, {max(took_s):.1f} s at most")
    # A strike whose moment comes after a study's end hits nothing: such a study does not count.
    figure("chaos_studies", sum(bool(outcome.strikes) for outcome in outcomes), "studies")
    figure("chaos_left_behind", sum(bool(outcome.left) for outcome in outcomes), "studies")
    figure("chaos_levels_lost", sum(len(outcome.lost) for outcome in outcomes), "levels")
    figure("chaos_winners_differ", len(differing), "studies")


def _same_answer(outcome: Outcome, twin: Outcome) -> bool:
    """The same setting; or the study itself says that there is no clear winner, or that its time was too short."""
    out_of_time = outcome.why is not None and ("too short" in outcome.why or "used up" in outcome.why)
    explained = outcome.clear is False or (out_of_time and outcome.levels < twin.levels)
    return outcome.ended and (outcome.winner == twin.winner or explained)


if __name__ == "__main__":
    main()
