"""`python -m bench.contest [--presets a.yaml recorded.jsonl] [--seeds N]`: one run, a few tables, the figures last.

A preset is run on the simulated engine; a table of recorded starts and levels (.jsonl) is replayed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from bench.contest.cases import HIDDEN_RANGES, Case, SimulatedCase, cases_of, default_cases, hidden_of
from bench.contest.ours import Kvtune
from bench.contest.race import Method, Score, World, run_study
from bench.contest.recorded.case import SUFFIX, RecordedCase, recorded_case
from bench.contest.recorded.world import RecordedWorld
from bench.contest.report import BLACK_BOX, KVTUNE, RECORDED, minutes_saved, print_cases, print_figures, print_table
from bench.contest.rivals import available_rivals
from bench.contest.simulated import SimulatedWorld
from bench.contest.table import RateTable, rate_table
from launcher.errors import UsageError
from tuner.errors import StudyFileError

OWN_RECORDING = Path(__file__).parents[1] / "h200" / "results" / "table.jsonl"
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
HOW_IT_IS_SIMULATED = """\
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
    parser = _parser()
    arguments = parser.parse_args()
    try:
        simulated, recorded = _cases(arguments.presets)
    except (UsageError, StudyFileError) as error:
        parser.error(str(error))
    seeds = range(arguments.seed0, arguments.seed0 + arguments.seeds)
    began = time.monotonic()
    simulated_scores = _run_simulated(simulated, seeds) if simulated else []
    recorded_scores = _run_recorded(recorded, seeds) if recorded else []
    print(f"\nwhole contest: {time.monotonic() - began:.0f} s\n")
    if simulated_scores:
        print_figures(simulated_scores)
    if recorded_scores:
        print_figures(recorded_scores, RECORDED)


def _cases(presets: Sequence[str]) -> tuple[Sequence[SimulatedCase], Sequence[RecordedCase]]:
    """Presets and recordings by name or path; without any, the contest's own."""
    if not presets:
        return default_cases(), [recorded_case(OWN_RECORDING)]
    tables = [preset for preset in presets if preset.endswith(SUFFIX)]
    return cases_of([preset for preset in presets if preset not in tables]), [recorded_case(table) for table in tables]


def _run_simulated(cases: Sequence[SimulatedCase], seeds: range) -> list[Score]:
    began = time.monotonic()
    _say_what_is_simulated(cases, len(seeds))
    with ProcessPoolExecutor(WORKERS) as pool:
        tables = dict(zip([case.name for case in cases], pool.map(rate_table, cases), strict=True))
    print(f"rate tables: {time.monotonic() - began:.0f} s", flush=True)
    with ProcessPoolExecutor(WORKERS, initializer=_in_worker, initargs=(tables,)) as pool:
        scores = _run(pool, _jobs(cases, seeds))
        print_table("All cases and seeds, budget 2 h of simulated time", _by_method(scores))
        print_cases([score for score in scores if score.method == KVTUNE])
        _run_side_tables(pool, cases, scores, seeds[:SIDE_SEEDS])
    return scores


def _run_recorded(cases: Sequence[RecordedCase], seeds: range) -> list[Score]:
    """One table for each recording: no two boxes in one median."""
    with ProcessPoolExecutor(WORKERS, initializer=_in_worker) as pool:
        scores = _run(pool, _jobs(cases, seeds))
    for case in cases:
        title = f"{case.name}: {case.workload}, {len(seeds)} seeds, budget 2 h.\n{case.says_what_it_is()}"
        print_table(title, _by_method([score for score in scores if score.case == case.name]))
    return scores


def _jobs(cases: Sequence[Case], seeds: range) -> list[Job]:
    return [Job(case, seed, _methods()) for seed, case in itertools.product(seeds, cases)]


def _run_side_tables(pool: Executor, cases: Sequence[SimulatedCase], scores: Sequence[Score], seeds: range) -> None:
    """What probes save, and what deliberate errors of the physics cost."""
    slow = [case for case in cases if case.slow_start]
    both = (WITH_PROBES, WITHOUT_PROBES)
    _print_probes(_run(pool, [Job(case, seed, both) for case, seed in itertools.product(slow, seeds)]))
    for title, errors in ERRORS:
        jobs = [Job(case, seed, (KVTUNE,), tuple(errors.items())) for case, seed in itertools.product(cases, seeds)]
        _print_error(title, scores, _run(pool, jobs), seeds)


def _run(pool: Executor, jobs: Sequence[Job]) -> list[Score]:
    return list(itertools.chain.from_iterable(pool.map(run_job, jobs)))


def _in_worker(tables: Mapping[str, RateTable] | None = None) -> None:
    """Give a worker process the tables once, and one thread: the fits are small, and the workers share the cores."""
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    TABLES.update(tables or {})


def run_job(job: Job) -> list[Score]:
    """The studies of one truth, in a worker process."""
    oracle = make_world(job).oracle()
    return [run_study(make_method(name, job.case, job.seed), make_world(job), job.seed, oracle) for name in job.methods]


def make_world(job: Job) -> World:
    """The box of that truth, fresh for one study."""
    match job.case:
        case SimulatedCase() as simulated:
            hidden = hidden_of(simulated, job.seed, dict(job.errors))
            return SimulatedWorld(simulated, TABLES[simulated.name], hidden, job.seed)
        case RecordedCase() as recorded:
            return RecordedWorld(recorded, job.seed)
    raise TypeError(f"{job.case.name}: no world is known for a {type(job.case).__name__}")


def make_method(name: str, case: Case, seed: int) -> Method:
    """The contestant of that name, fresh for one study."""
    rivals = {rival.name: rival for rival in available_rivals()}
    if name in rivals:
        return rivals[name](case, seed)
    return Kvtune(case, seed, black_box=name == BLACK_BOX, probes=name != WITHOUT_PROBES, name=name)


def _methods() -> tuple[str, ...]:
    return (KVTUNE, BLACK_BOX, *(rival.name for rival in available_rivals()))


def _by_method(scores: Sequence[Score]) -> list[tuple[str, list[Score]]]:
    return [(method, [score for score in scores if score.method == method]) for method in _methods()]


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


def _say_what_is_simulated(cases: Sequence[SimulatedCase], seeds: int) -> None:
    print("On the simulated engine: every rate, minute and crash is simulated, up to what is called recorded.")
    for case in cases:
        print(f"  {case.name}: {case.workload}, HiCache {list(case.space.hicache_sizes_gb)} GB", flush=True)
    print(f"{seeds} seeds; hidden per seed: {HIDDEN_RANGES}.")
    print(HOW_IT_IS_SIMULATED)
    if len(available_rivals()) < RIVALS_WITH_TORCH:
        print("Optuna's GP sampler needs torch, which is not installed here: it does not take part.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.contest", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=[], help="presets by name or path, or recorded tables (.jsonl)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per case")
    parser.add_argument("--seed0", type=int, default=0, help="the first seed")
    return parser


if __name__ == "__main__":
    main()
