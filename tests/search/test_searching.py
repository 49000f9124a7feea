"""The search on a toy truth of its own: near the best in few starts, safely, purely, and with honest words."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from tuner.memory import MemoryPrior, ModelGeometry
from tuner.search import Searcher, SearchOptions
from tuner.search.levels import is_full
from tuner.space import Space
from tuner.trial import Minutes, Percentiles, Purpose, Setting, TrialResult, TrialState

KIMI = ModelGeometry("kimi_k2", 61, 7168, 18432, 163840, 64, 64, 112, 512, 64, 384, 594e9, True)
DENSE = replace(KIMI, experts=0)
SPACE = Space((0.80, 0.95), ("bfloat16", "fp8_e4m3"), (0, 20), (16, 256))


def searcher(space: Space = SPACE, geometry: ModelGeometry = KIMI, **options: object) -> Searcher:
    given = {"probes": False, **options}
    return Searcher(
        space,
        prior=MemoryPrior(geometry, 95.6, 8),
        options=SearchOptions(**given),  # type: ignore[arg-type]
    )


def drawn(toy, seed: int):
    """A toy whose hidden numbers are drawn anew."""
    draw = random.Random(seed)
    return replace(
        toy,
        before_gib=94 + draw.uniform(-1, 1),
        weights_gib=72 + draw.uniform(-2, 1),
        overhead_gib=draw.uniform(3, 7),
        transient_gib=draw.uniform(0.6, 2.2),
        step_s=draw.uniform(0.03, 0.09),
        random=random.Random(seed),
    )


@pytest.mark.parametrize("seed", range(4))
def test_near_the_best_in_four_starts_without_a_crash(toy, seed: int) -> None:
    box = drawn(toy, seed)
    search = searcher()
    history = box.study(search)
    best = search.verdict(history[:4]).incumbent
    assert best is not None
    assert box.rate(best.setting, best.concurrency) >= 0.95 * box.oracle(SPACE)
    assert all(trial.failure is None for trial in history)


def test_first_start_is_the_users_own() -> None:
    current = Setting(0.86, "bfloat16", 20)
    search = searcher(current=current)
    proposal = search.propose([], 7200)
    assert proposal is not None
    assert proposal.setting == current
    assert proposal.purpose is Purpose.FIRST


def test_first_start_without_one_is_sglangs_default() -> None:
    proposal = searcher().propose([], 7200)
    assert proposal is not None
    assert proposal.setting.mem_fraction_static == pytest.approx(0.833, abs=0.002)
    assert proposal.setting.kv_cache_dtype == "bfloat16"
    assert proposal.setting.hicache_size_gb == 0


def test_same_history_same_answers(toy) -> None:
    search = searcher()
    history = toy.study(search)
    for length in range(len(history)):
        again = searcher().propose(history[:length], 5000)
        assert again == searcher().propose(history[:length], 5000)
    assert searcher().verdict(history) == search.verdict(history)


def test_the_budget_is_never_exceeded(toy) -> None:
    history = toy.study(searcher(), budget_s=2500)
    spent = sum(
        trial.minutes.clean_slate_s + trial.minutes.start_s + trial.minutes.measure_s + trial.minutes.stop_s
        for trial in history
    )
    assert spent <= 2500
    assert searcher().propose(history, 60) is None


def test_a_crash_moves_the_search_to_the_safe_side(toy) -> None:
    """A box that hides 3 GiB from its log: after the first death nothing above it is started."""
    box = replace(toy, transient_gib=1.0, random=random.Random(3))
    search = searcher()
    history = box.study(search, budget_s=700)
    crash = Failure(
        kind=Kind.GPU_OOM_RUNTIME,
        stage=Stage.UNDER_LOAD,
        mem_fraction_direction=Direction.DOWN,
        culprit=Culprit.CONFIGURATION,
        retry=False,
        sentence="out of memory under load",
    )
    proposal = search.propose(history, 7200)
    assert proposal is not None
    died = TrialResult(
        len(history),
        proposal,
        TrialState.FAILED,
        box.timeline(proposal.setting),
        failure=crash,
        minutes=Minutes(),
    )
    after = search.propose([*history, died], 7200)
    assert after is not None
    assert box.headroom_gib(after.setting) > box.headroom_gib(proposal.setting)


def test_infrastructure_failures_change_nothing(toy) -> None:
    search = searcher()
    history = toy.study(search, budget_s=700)
    proposal = search.propose(history, 5000)
    assert proposal is not None
    port = Failure(
        kind=Kind.PORT_IN_USE,
        stage=Stage.LAUNCH,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence="the port was taken",
    )
    broken = TrialResult(99, proposal, TrialState.INFRASTRUCTURE, None, failure=port)
    again = search.propose([*history, broken], 5000)
    assert again is not None
    assert again.setting == proposal.setting
    assert "no fault of the configuration" in search.verdict([*history, broken]).explanation


def test_five_minutes_are_enough_for_a_tiny_model_on_a_cpu() -> None:
    tiny = replace(DENSE, weights_bytes=4e5)
    prior = MemoryPrior(tiny, None, captures_graphs=False)
    short = Searcher(Space(0.05, concurrency=(2, 16)), prior=prior, options=SearchOptions(expected_level_s=25.0))
    assert short.propose([], 270) is not None
    assert short.propose([], 60) is None
    big = Searcher(
        Space(0.85), prior=MemoryPrior(DENSE, 95.6, 8), options=SearchOptions(expected_level_s=25, probes=False)
    )
    assert big.propose([], 270) is None


def test_a_pool_without_room_for_another_request_is_full(toy) -> None:
    level = replace(
        toy.level(Setting(0.85, "bfloat16"), 16), queued_requests=6.0, running_requests=7.0, token_usage_share=0.75
    )
    assert not is_full(level)
    assert is_full(level, longest_share=266 / 1024)
    assert not is_full(replace(level, queued_requests=0.0), longest_share=266 / 1024)


def test_levels_climb_and_stop_at_a_full_pool(toy) -> None:
    search = searcher()
    proposal = search.propose([], 7200)
    assert proposal is not None
    done = []
    while (concurrency := search.next_concurrency([], proposal, done, 7200)) is not None:
        done.append(toy.level(proposal.setting, concurrency))
    assert 1 <= len(done) <= search.options.most_levels
    full = [level.concurrency for level in done if level.queued_requests > 0.05 * level.concurrency]
    assert all(level.concurrency <= min(full, default=math.inf) for level in done[:-1])


def test_probe_first_where_weights_take_minutes_and_never_the_answer(toy) -> None:
    search = searcher(geometry=DENSE, probes=True)
    history = toy.study(search)
    assert history[0].proposal.purpose is Purpose.PROBE
    best = search.verdict(history).incumbent
    assert best is not None
    probes = {trial.trial_id for trial in history if trial.proposal.purpose is Purpose.PROBE}
    assert best.trial_id not in probes
    assert search.verdict(history[:1]).incumbent is None


def test_probes_are_dropped_when_the_first_real_start_differs(toy) -> None:
    search = searcher(geometry=DENSE, probes=True)
    proposal = search.propose([], 7200)
    assert proposal is not None
    probe = replace(toy, overhead_gib=toy.overhead_gib - 2).trial(search, [], proposal, 7200)
    real = search.propose([probe], 6500)
    assert real is not None
    started = toy.trial(search, [probe], real, 6500)
    knowledge = search.knowledge([probe, started])
    assert not knowledge.probes_trusted
    assert all(not point.probe for point in knowledge.points)


def test_winner_and_runner_up_are_confirmed_interleaved(toy) -> None:
    history = toy.study(searcher(), budget_s=9000)
    confirmed = [trial.proposal.setting for trial in history if trial.proposal.purpose is Purpose.CONFIRM]
    assert confirmed
    assert all(one != other for one, other in pairwise(confirmed)) or len(confirmed) == 1


def test_a_tie_goes_to_fewer_overrides(toy) -> None:
    """HiCache that changes nothing must not be in the answer."""
    box = replace(toy, hicache_gain=0.0, noise=0.02, random=random.Random(5))
    space = Space(0.88, ("bfloat16",), (0, 20), (16, 128))
    search = searcher(space)
    history = box.study(search, budget_s=10_000)
    assert {trial.proposal.setting.hicache_size_gb for trial in history} == {0, 20}
    assert search.export_setting(history).hicache_size_gb == 0


def test_export_keeps_the_stated_margin(toy) -> None:
    search = searcher()
    history = toy.study(search)
    exported = search.export_setting(history)
    assert toy.headroom_gib(exported) >= toy.transient_gib + search.options.safety_gib - 0.1
    with pytest.raises(LookupError):
        search.export_setting([])


def test_the_explanation_says_what_binds_and_what_was_left_out(toy) -> None:
    space = Space((0.80, 0.95), ("bfloat16",), (0,), (16, 256))
    search = searcher(space)
    words = search.verdict(toy.study(search)).explanation
    assert "The KV pool binds" in words
    assert "fp8_e4m3 is not in the allowlist" in words
    assert "Exported" in words


def test_reasons_carry_tokens_headroom_and_survival(toy) -> None:
    search = searcher()
    history = toy.study(search, budget_s=700)
    proposal = search.propose(history, 5000)
    assert proposal is not None
    for words in ("K tokens", "GiB headroom", "to survive", "expected +"):
        assert words in proposal.reason


def test_earlier_trials_warm_start_but_are_not_the_answer(toy) -> None:
    earlier = tuple(toy.study(searcher()))
    warm = searcher(earlier=earlier)
    assert warm.verdict([]).incumbent is None
    proposal = warm.propose([], 7200)
    assert proposal is not None
    assert toy.rate(proposal.setting, max(proposal.concurrencies)) >= 0.95 * toy.oracle(SPACE)


@pytest.mark.parametrize("seed", range(3))
def test_a_second_study_is_there_with_its_first_start(toy, seed: int) -> None:
    box = drawn(toy, seed)
    cold, best_rate = box.study(searcher()), box.oracle(SPACE)

    def starts_to_97(search: Searcher, history: list[TrialResult]) -> int:
        bests = [search.verdict(history[: count + 1]).incumbent for count in range(len(history))]
        good = [best is not None and box.rate(best.setting, best.concurrency) >= 0.97 * best_rate for best in bests]
        return next(count for count in range(1, len(good) + 1) if all(good[count - 1 :]))

    warm = searcher(earlier=tuple(cold))
    again = box.study(warm)
    assert starts_to_97(warm, again) == 1
    assert starts_to_97(searcher(), cold) > 1
    assert all(trial.failure is None for trial in again)


def test_an_earlier_rate_weighs_less_than_ones_own(toy) -> None:
    earlier = toy.study(searcher(), budget_s=2000)
    knowledge = searcher(earlier=tuple(earlier)).knowledge(earlier)
    own = [point.log_sd for point in knowledge.points if not point.earlier]
    old = [point.log_sd for point in knowledge.points if point.earlier]
    assert min(old) > 2 * max(own)


def test_what_is_not_the_users_own_is_not_trusted() -> None:
    """Flags that had to be moved into the space have never run there: they are judged like any other."""
    moved = searcher(Space((0.80, 0.95), ("bfloat16",), (0,)), current=Setting(0.99, "bfloat16", 0)).propose([], 7200)
    assert moved is not None
    assert moved.setting.mem_fraction_static < 0.95
    unnamed = searcher(current=Setting(None, "bfloat16", 0)).propose([], 7200)
    assert unnamed is not None
    assert unnamed.setting.mem_fraction_static == pytest.approx(0.833, abs=0.002)


def test_black_box_uses_no_physics(toy) -> None:
    search = searcher(black_box=True)
    history = toy.study(search)
    assert len(history) > 4
    assert all(trial.proposal.predicted_tokens is None for trial in history)
    best = search.verdict(history).incumbent
    assert best is not None
    first = max(toy.rate(history[0].proposal.setting, level.concurrency) for level in history[0].levels)
    assert toy.rate(best.setting, best.concurrency) > first


def test_black_box_steps_towards_a_death_from_the_safe_side(toy) -> None:
    """What died with one dtype is believed of the others: no step goes past the middle between what lived and died."""
    search = searcher(black_box=True)
    history = toy.study(search, budget_s=12_000)
    for count, trial in enumerate(history):
        before = history[:count]
        lived = [one.proposal.setting.mem_fraction_static for one in before if one.failure is None]
        died = [one.proposal.setting.mem_fraction_static for one in before if one.failure is not None]
        fraction = trial.proposal.setting.mem_fraction_static
        if lived and died:
            assert fraction <= max(lived) + 0.5 * (min(died) - max(lived))
        elif lived:
            assert fraction <= max(0.85, *lived) + 0.04


def test_the_only_setting_that_was_measured_is_no_clear_winner(toy) -> None:
    search = searcher()
    verdict = search.verdict(toy.study(search)[:1])
    assert verdict.incumbent is not None
    assert not verdict.clear
    assert "No other setting was measured" in verdict.explanation


def test_levels_that_all_miss_the_slo_are_told_with_their_times(toy) -> None:
    trial = toy.study(searcher())[0]
    late = Percentiles(1.0, 2.0, 3.0, 4.0)
    missed = tuple(replace(level, goodput_tokens_per_s=0.0, ttft_s=late) for level in trial.levels)
    verdict = searcher().verdict([replace(trial, levels=missed)])
    assert verdict.incumbent is None
    assert "No response of any level kept the SLO" in verdict.explanation
    assert "TTFT p95 3.00 s" in verdict.explanation
