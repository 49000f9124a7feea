"""`python -m bench.contest [--presets a.yaml b.yaml] [--seeds N]`: one run, a few tables, the figures last."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from bench.contest.cases import HIDDEN_RANGES, Case, cases_of, default_cases, hidden_of
from bench.contest.ours import Kvtune
from bench.contest.race import Method, Score, run_study
from bench.contest.report import BLACK_BOX, KVTUNE, minutes_saved, print_cases, print_figures, print_table
from bench.contest.rivals import available_rivals
from bench.contest.table import RateTable, rate_table
from bench.contest.world import World

WORKERS = 2
SEEDS = 20
SIDE_SEEDS = 5
"""Seeds of the side tables (probes, model errors)."""
ERRORS: tuple[tuple[str, dict[str, float]], ...] = (
    ("overhead +2 GiB, unseen", {"overhead_gib": 2.0}),
    ("speed curve bent", {"bend": 0.15}),
    ("fp8 holds 25% fewer tokens", {"fp8_tokens": 0.75}),
)
RIVALS_WITH_TORCH = 9
HOW_IT_IS_RUN = """\
Starts, logs and crashes are the engine's own. A level loads it for a minute; its rate is read
from a table measured on the engine in virtual time, scaled by the hidden speed, with noise on top.
Oracle: the best true rate among settings that live with the transient two deviations above its mean. All
rivals climb four levels per start; those with a model begin at SGLang's default."""
WITH_PROBES, WITHOUT_PROBES = "with probes", "without probes"
TABLES: dict[str, RateTable] = {}
"""In a worker process: the rate table of each case by its name."""


@dataclass(frozen=True, slots=True)
class Job:
    """One truth for several methods. `errors` are deliberate departures from the physics."""

    case: Case
    seed: int
    methods: tuple[str, ...]
    errors: tuple[tuple[str, float], ...] = ()


def main() -> None:
    arguments = _arguments()
    cases = cases_of(arguments.presets) if arguments.presets else default_cases()
    seeds = range(arguments.seed0, arguments.seed0 + arguments.seeds)
    began = time.monotonic()
    _say_what_is_run(cases, arguments.seeds)
    with ProcessPoolExecutor(WORKERS) as pool:
        tables = dict(zip([case.name for case in cases], pool.map(rate_table, cases), strict=True))
    print(f"rate tables: {time.monotonic() - began:.0f} s", flush=True)
    with ProcessPoolExecutor(WORKERS, initializer=_with_tables, initargs=(tables,)) as pool:
        scores = _run(pool, [Job(case, seed, _methods()) for seed, case in itertools.product(seeds, cases)])
        _print_main(scores)
        _run_side_tables(pool, cases, scores, seeds[:SIDE_SEEDS])
    print(f"\nwhole contest: {time.monotonic() - began:.0f} s\n")
    print_figures(scores)


def _run_side_tables(pool: Executor, cases: Sequence[Case], scores: Sequence[Score], seeds: range) -> None:
    """What probes save, and what deliberate errors of the physics cost."""
    slow = [case for case in cases if case.slow_start]
    both = (WITH_PROBES, WITHOUT_PROBES)
    _print_probes(_run(pool, [Job(case, seed, both) for case, seed in itertools.product(slow, seeds)]))
    for title, errors in ERRORS:
        jobs = [Job(case, seed, (KVTUNE,), tuple(errors.items())) for case, seed in itertools.product(cases, seeds)]
        _print_error(title, scores, _run(pool, jobs), seeds)


def _run(pool: Executor, jobs: Sequence[Job]) -> list[Score]:
    return list(itertools.chain.from_iterable(pool.map(run_job, jobs)))


def _with_tables(tables: Mapping[str, RateTable]) -> None:
    """Give a worker process the tables once, and one thread: the fits are small, and the workers share the cores."""
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    TABLES.update(tables)


def run_job(job: Job) -> list[Score]:
    """The studies of one truth, in a worker process."""
    hidden = hidden_of(job.case, job.seed, dict(job.errors))

    def world() -> World:
        return World(job.case, TABLES[job.case.name], hidden, job.seed)

    oracle = world().oracle()
    return [run_study(make_method(name, job.case, job.seed), world(), job.seed, oracle) for name in job.methods]


def make_method(name: str, case: Case, seed: int) -> Method:
    """The contestant of that name, fresh for one study."""
    rivals = {rival.name: rival for rival in available_rivals()}
    if name in rivals:
        return rivals[name](case, seed)
    return Kvtune(case, seed, black_box=name == BLACK_BOX, probes=name != WITHOUT_PROBES, name=name)


def _methods() -> tuple[str, ...]:
    return (KVTUNE, BLACK_BOX, *(rival.name for rival in available_rivals()))


def _print_main(scores: Sequence[Score]) -> None:
    by_method = [(method, [score for score in scores if score.method == method]) for method in _methods()]
    print_table("All cases and seeds, budget 2 h of simulated time", by_method)
    print_cases([score for score in scores if score.method == KVTUNE])


def _print_probes(scores: Sequence[Score]) -> None:
    if not scores:
        return
    groups = [
        (method, [score for score in scores if score.method == method]) for method in (WITH_PROBES, WITHOUT_PROBES)
    ]
    print_table("Probes, on presets whose weights take minutes", groups)
    saved = minutes_saved(*(scores for _, scores in groups))
    if saved:
        print(f"Minutes saved until 97%, study by study: median {statistics.median(saved):.1f} of {len(saved)} pairs")


def _print_error(title: str, scores: Sequence[Score], wrong: Sequence[Score], seeds: range) -> None:
    right = [score for score in scores if score.method == KVTUNE and score.seed in seeds]
    print_table(f"Deliberate error: {title}", [("physics right", right), ("physics wrong", wrong)])


def _say_what_is_run(cases: Sequence[Case], seeds: int) -> None:
    print("The contest runs on the simulated engine: every rate, minute and crash below is simulated.")
    for case in cases:
        print(f"  {case.name}: {case.workload}, HiCache {list(case.space.hicache_sizes_gb)} GB", flush=True)
    print(f"{seeds} seeds; hidden per seed: {HIDDEN_RANGES}.")
    print(HOW_IT_IS_RUN)
    if len(available_rivals()) < RIVALS_WITH_TORCH:
        print("Optuna's GP sampler needs torch, which is not installed here: it does not take part.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.contest", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=[], help="presets by name or path, instead of the own pairs")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per case")
    parser.add_argument("--seed0", type=int, default=0, help="the first seed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
