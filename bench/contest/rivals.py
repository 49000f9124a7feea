"""The rivals. Each sees what a tuner sees of a trial: rates, and that a start failed. All climb the same levels.

The inner loop is the same for all: four concurrency levels of one start, evenly spaced in ratio, climbing until
requests queue or the rate falls. That is more than the published tools have (one load per relaunch), and it helps.
The model-based ones begin at SGLang's own default, as a careful user of them would.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence

import numpy as np
import optuna
from scipy.stats import norm, qmc
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from skopt import Optimizer
from skopt.learning import GaussianProcessRegressor
from skopt.space import Categorical, Real
from skopt.space import Space as UnitSpace

from bench.contest.cases import Case
from launcher.timeline import Timeline
from tuner.space import Space
from tuner.trial import LevelEnd, LevelResult, Proposal, Purpose, Setting, TrialResult

optuna.logging.set_verbosity(optuna.logging.ERROR)

LEVELS = 4
RANDOM_FIRST = 4
"""Starts that the model-based rivals make before their model speaks, the default among them."""
GOOD_DROP = 0.97


def rate_of(trial: TrialResult) -> float | None:
    """The best level's rate; None for a start that measured nothing."""
    best = trial.best_level
    return None if best is None else best.completion_rate.value


def default_setting(case: Case) -> Setting:
    """SGLang's own default, moved into the space."""
    return case.space.nearest(Setting(case.prior.default_fraction(), "bfloat16", 0))


class Rival:
    """The common inner loop and the answer; subclasses choose the settings."""

    name = "rival"

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.seed = case, seed
        low, high = case.space.concurrency
        self._rungs = [round(float(rung)) for rung in np.geomspace(low, high, LEVELS)]

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        raise NotImplementedError

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None:
        del remaining_s
        setting = self.choose(history)
        return None if setting is None else Proposal(setting, tuple(self._rungs), Purpose.EXPLORE, self.name, 0.0)

    def next_concurrency(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,
        timeline: Timeline | None,
    ) -> int | None:
        del history, remaining_s, timeline
        if not done:
            return proposal.concurrencies[0]
        falling = len(done) > 1 and _value(done[-1]) < GOOD_DROP * _value(done[-2])
        if done[-1].end is LevelEnd.QUEUE_ONLY or falling or len(done) >= LEVELS:
            return None
        return proposal.concurrencies[len(done)]

    def answer(self, history: Sequence[TrialResult]) -> tuple[Setting, int] | None:
        levels = [(trial.proposal.setting, level) for trial in history for level in trial.levels]
        if not levels:
            return None
        setting, level = max(levels, key=lambda one: _value(one[1]))
        return setting, level.concurrency


def _value(level: LevelResult) -> float:
    return level.completion_rate.value


class Default(Rival):
    name = "SGLang's default"

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        return None if history else default_setting(self.case)


class Grid(Rival):
    """What a person would run: fractions upwards until one dies, for each dtype, then with HiCache at the best."""

    name = "grid by hand"
    fractions = (0.80, 0.84, 0.87, 0.90, 0.92, 0.94, 0.96)

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        tried = {_key(trial.proposal.setting) for trial in history}
        for setting in self._order(history):
            if _key(setting) not in tried and not self._above_a_death(setting, history):
                return setting
        return None

    def _order(self, history: Sequence[TrialResult]) -> list[Setting]:
        space = self.case.space
        low, high = space.fraction_bounds
        fractions = [low, *(fraction for fraction in self.fractions if low < fraction < high)]
        plain = [Setting(fraction, dtype, 0) for dtype in space.kv_cache_dtypes for fraction in fractions]
        best = self.answer(history)
        if best is None:
            return plain
        best_dtype, best_fraction = best[0].kv_cache_dtype, best[0].mem_fraction_static
        return plain + [Setting(best_fraction, best_dtype, size) for size in space.hicache_sizes_gb if size]

    @staticmethod
    def _above_a_death(setting: Setting, history: Sequence[TrialResult]) -> bool:
        return any(
            trial.failure is not None
            and trial.proposal.setting.kv_cache_dtype == setting.kv_cache_dtype
            and (trial.proposal.setting.mem_fraction_static or 0) <= (setting.mem_fraction_static or 0)
            and not trial.levels
            for trial in history[1:]
        )


def _key(setting: Setting) -> tuple[float | None, str, int]:
    return (setting.mem_fraction_static, setting.kv_cache_dtype, setting.hicache_size_gb)


class Random(Rival):
    name = "random"

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        draw = random.Random(f"{self.seed}:{len(history)}")
        return _from_unit(self.case.space, [draw.random() for _ in range(3)])


class LatinHypercube(Rival):
    name = "Latin hypercube"
    size = 12
    """About as many starts as fit into the budget."""

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        sample = qmc.LatinHypercube(d=3, rng=np.random.default_rng(self.seed)).random(self.size)
        if len(history) >= self.size:
            return Random(self.case, self.seed).choose(history)
        return _from_unit(self.case.space, [float(value) for value in sample[len(history)]])


def _from_unit(space: Space, unit: Sequence[float]) -> Setting:
    low, high = space.fraction_bounds
    dtypes, sizes = space.kv_cache_dtypes, space.hicache_sizes_gb
    return Setting(
        round(low + unit[0] * (high - low), 4),
        dtypes[int(unit[1] * len(dtypes))],
        sizes[int(unit[2] * len(sizes))],
    )


class Tpe(Rival):
    """Optuna's TPE, a crash told as TrialState.FAIL, which its samplers ignore."""

    name = "Optuna TPE, FAIL"

    def __init__(self, case: Case, seed: int) -> None:
        super().__init__(case, seed)
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler())
        first = default_setting(case)
        self._study.enqueue_trial(
            {"f": first.mem_fraction_static, "dtype": first.kv_cache_dtype, "hicache": first.hicache_size_gb}
        )
        self._asked: optuna.trial.Trial | None = None

    def _sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(n_startup_trials=RANDOM_FIRST, seed=self.seed)

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        if self._asked is not None:
            self._tell(self._asked, history)
        self._asked = self._study.ask()
        low, high = self.case.space.fraction_bounds
        return Setting(
            self._asked.suggest_float("f", low, high),
            self._asked.suggest_categorical("dtype", self.case.space.kv_cache_dtypes),
            self._asked.suggest_categorical("hicache", self.case.space.hicache_sizes_gb),
        )

    def _tell(self, asked: optuna.trial.Trial, history: Sequence[TrialResult]) -> None:
        rate = rate_of(history[-1])
        if rate is None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(asked, rate)


class ConstrainedTpe(Tpe):
    """Optuna's TPE with `constraints_func`: a crash is a violated constraint, and ranks last."""

    name = "Optuna TPE, constraint"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings():
            # Experimental in Optuna 4, deprecated in 5 (for a call that 4 does not have), the same in both.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_FIRST,
                seed=self.seed,
                constraints_func=lambda trial: (trial.user_attrs.get("crash", 0.0) - 0.5,),
            )

    def _tell(self, asked: optuna.trial.Trial, history: Sequence[TrialResult]) -> None:
        rate = rate_of(history[-1])
        asked.set_user_attr("crash", float(history[-1].failure is not None))
        self._study.tell(asked, 0.0 if rate is None else rate)


class ConstrainedGp(ConstrainedTpe):
    """Optuna's GP sampler with constraints. It needs torch."""

    name = "Optuna GP, constraint"

    def _sampler(self) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings():
            # Experimental in Optuna 4, deprecated in 5 (for a call that 4 does not have), the same in both.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.GPSampler(
                n_startup_trials=RANDOM_FIRST,
                seed=self.seed,
                constraints_func=lambda trial: (trial.user_attrs.get("crash", 0.0) - 0.5,),
            )


class SkoptPenalty(Rival):
    """scikit-optimize as it comes: expected improvement on a GP, a crash told as the worst rate seen."""

    name = "skopt, penalty"

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        space = self.case.space
        if not history:
            return default_setting(self.case)
        optimizer = Optimizer(
            _dimensions(space),
            n_initial_points=RANDOM_FIRST - 1,
            acq_func="EI",
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"n_points": 1000},
            random_state=self.seed + len(history),
        )
        rates = [rate_of(trial) for trial in history]
        worst = min((math.log(rate) for rate in rates if rate), default=0.0)
        told = [-math.log(rate) if rate else -worst for rate in rates]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.tell([_raw(space, trial.proposal.setting) for trial in history], told)
            return _from_raw(space, optimizer.ask())


class ForestFeasibility(Rival):
    """SCOOT's idea: expected improvement on a GP, times a random forest's chance of survival."""

    name = "GP + random forest"
    draws = 400

    def choose(self, history: Sequence[TrialResult]) -> Setting | None:
        if not history:
            return default_setting(self.case)
        made = random.Random(f"{self.seed}:{len(history)}")
        drawn = [_from_unit(self.case.space, [made.random() for _ in range(3)]) for _ in range(self.draws)]
        lived = [trial for trial in history if rate_of(trial)]
        if len(history) < RANDOM_FIRST or not lived:
            return drawn[0]
        score = self._improvement(lived, drawn) * self._survival(history, drawn)
        return drawn[int(np.argmax(score))]

    def _improvement(self, lived: Sequence[TrialResult], drawn: Sequence[Setting]) -> np.ndarray:
        unit = UnitSpace(_dimensions(self.case.space))
        known = unit.transform([_raw(self.case.space, trial.proposal.setting) for trial in lived])
        rates = np.log([rate_of(trial) or 1.0 for trial in lived])
        kernel = ConstantKernel(1.0, (0.01, 10.0)) * Matern(np.ones(np.shape(known)[1]), (0.1, 5.0), nu=2.5)
        process = GaussianProcessRegressor(kernel=kernel, alpha=0.0004, normalize_y=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            process.fit(known, rates)
        asked = unit.transform([_raw(self.case.space, setting) for setting in drawn])
        mean, sd = process.predict(asked, return_std=True)
        gap = mean - rates.max()
        return np.asarray(gap * norm.cdf(gap / sd) + sd * norm.pdf(gap / sd))

    def _survival(self, history: Sequence[TrialResult], drawn: Sequence[Setting]) -> np.ndarray:
        died = [trial.failure is not None for trial in history]
        if all(died) or not any(died):
            return np.ones(len(drawn))
        unit = UnitSpace(_dimensions(self.case.space))
        forest = RandomForestClassifier(40, random_state=self.seed)
        forest.fit(unit.transform([_raw(self.case.space, trial.proposal.setting) for trial in history]), died)
        asked = unit.transform([_raw(self.case.space, setting) for setting in drawn])
        return 1.0 - np.asarray(forest.predict_proba(asked))[:, 1]


def _dimensions(space: Space) -> list[Real | Categorical]:
    low, high = space.fraction_bounds
    return [
        Real(low, high, transform="normalize"),
        *([Categorical(list(space.kv_cache_dtypes))] if len(space.kv_cache_dtypes) > 1 else []),
        *([Categorical(list(space.hicache_sizes_gb))] if len(space.hicache_sizes_gb) > 1 else []),
    ]


def _raw(space: Space, setting: Setting) -> list[float | str | int]:
    low, high = space.fraction_bounds
    return [
        min(high, max(low, setting.mem_fraction_static or low)),
        *([setting.kv_cache_dtype] if len(space.kv_cache_dtypes) > 1 else []),
        *([setting.hicache_size_gb] if len(space.hicache_sizes_gb) > 1 else []),
    ]


def _from_raw(space: Space, raw: Sequence[object]) -> Setting:
    values = [str(value) for value in raw]
    fraction = float(values.pop(0))
    dtype = values.pop(0) if len(space.kv_cache_dtypes) > 1 else space.kv_cache_dtypes[0]
    size = int(values.pop(0)) if len(space.hicache_sizes_gb) > 1 else space.hicache_sizes_gb[0]
    return Setting(fraction, dtype, size)


RIVALS: tuple[type[Rival], ...] = (
    Default,
    Grid,
    Random,
    LatinHypercube,
    Tpe,
    ConstrainedTpe,
    SkoptPenalty,
    ForestFeasibility,
)


def available_rivals() -> tuple[type[Rival], ...]:
    """All rivals that can run here: Optuna's GP sampler needs torch, which is not a dependency of kvtune."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return RIVALS
    return (*RIVALS, ConstrainedGp)
