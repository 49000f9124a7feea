"""Levels on the simulated engine, in virtual time."""

from __future__ import annotations

import pytest

from launcher.config import ServerConfig
from launcher.simulated.engine import Engine
from launcher.simulated.presets import load_preset
from tuner.measure.segments import segments_of
from tuner.measure.virtual import measure_level
from tuner.steady import Slo
from tuner.testbed import LevelLimits
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Request, Text, load_workload

WORKLOAD = "random:in=1000,out=2000,cv=0.5,n=4000"


def engine(fraction: float = 0.88) -> Engine:
    preset = load_preset("kimi-k2.5-8x-rtx-pro-6000")
    return Engine(preset, ServerConfig("model", fraction, "bfloat16", flags={"tp-size": 8}), seed=3)


def measure(on: Engine, concurrency: int, seed: int = 1) -> LevelResult:
    slo = Slo(ttft_p95_s=60.0, itl_p95_s=0.5)
    result = measure_level(on, load_workload(WORKLOAD, seed=seed), concurrency, LevelLimits(900.0), slo=slo)
    assert isinstance(result, LevelResult)
    return result


def test_several_levels_of_one_start() -> None:
    running = engine()
    low, high = measure(running, 16), measure(running, 128)
    assert low.end is high.end is LevelEnd.NARROW
    assert low.completion_rate.high < high.completion_rate.low
    assert running.gauges().running_requests == running.gauges().queued_requests == 0


def test_a_level_has_all_its_numbers() -> None:
    result = measure(engine(), 128)
    assert result.gen_tokens_per_s is not None
    assert result.completion_rate.value == pytest.approx(result.gen_tokens_per_s, rel=0.1)
    assert result.responses_per_s == pytest.approx(result.completion_rate.value / 2000, rel=0.03)
    assert result.queued_requests is not None
    assert result.queued_requests > 20
    assert result.token_usage_share is not None
    assert 0.8 < result.token_usage_share <= 1
    assert result.ttft_s is not None
    assert result.itl_s is not None
    assert result.ttft_s.p50 > 30  # half the clients wait for the others
    assert result.itl_s.p50 < 0.5
    assert result.slo_attainment_share is not None
    assert result.slo_attainment_share < 0.5
    assert set(result.headroom_min_gib) == set(range(8))
    assert result.tokens_per_joule is not None
    assert result.remaining_s is not None
    assert result.remaining_s.low < result.remaining_s.value < result.remaining_s.high
    assert result.remaining_s.value == pytest.approx(4000 * 2000 / result.completion_rate.value, rel=0.1)


def test_the_same_seed_gives_the_same_level() -> None:
    assert measure(engine(), 64) == measure(engine(), 64)


def test_shared_prefixes_are_found_in_the_cache_and_private_prompts_never_are() -> None:
    running = engine()
    for spec, hits in (("shared-prefix:groups=4,prefix=900,in=100,out=200", 0.9), ("random:in=1000,out=200", 0.0)):
        for _ in range(2):
            result = measure_level(running, load_workload(spec, seed=1), 16, LevelLimits(900.0))
            assert isinstance(result, LevelResult)
            assert result.cache_hit_share == pytest.approx(hits, abs=0.02)


def test_a_conversations_next_turn_finds_its_own_answer_in_the_cache() -> None:
    result = measure_level(engine(), load_workload("multi-turn:turns=4,in=100,out=100", seed=1), 4, LevelLimits(300.0))
    assert isinstance(result, LevelResult)
    # Of 100 + 300 + 500 + 700 prompt tokens a session, 0 + 200 + 400 + 600 were there in the turn before.
    assert result.cache_hit_share == pytest.approx(0.75, abs=0.05)


def test_an_open_loop_finishes_what_arrives() -> None:
    result = measure_level(engine(), load_workload("random:in=200,out=100,cv=0.3@1/s", seed=1), 64, LevelLimits(600.0))
    assert isinstance(result, LevelResult)
    assert result.completion_rate.value == pytest.approx(100, rel=0.15)
    assert result.running_requests is not None
    assert result.running_requests < 30


def test_an_open_loop_begins_in_its_middle() -> None:
    """An answer takes a minute and a half here: from an empty server, that is how long it would take to fill."""
    result = measure_level(engine(), load_workload("random:in=400,out=2000@0.25/s", seed=1), 200, LevelLimits(90.0))
    assert isinstance(result, LevelResult)
    assert result.completion_rate.value == pytest.approx(500, rel=0.1)


def test_the_interval_of_an_open_loop_counts_its_arrivals() -> None:
    workload = load_workload("random:in=400,out=300,cv=0.5@1/s", seed=1)
    result = measure_level(engine(), workload, 200, LevelLimits(240.0))
    assert isinstance(result, LevelResult)
    share = result.completion_rate.half_width / result.completion_rate.value
    assert share == pytest.approx(1.96 * (1.25 / result.measured_s) ** 0.5, rel=0.25)


def test_what_arrives_too_fast_waits_in_the_server_and_its_wait_is_told() -> None:
    running = engine()
    own_cap = running.gauges().max_running_requests
    result = measure_level(running, load_workload("random:in=200,out=100@20/s", seed=1), 8, LevelLimits(120.0))
    assert isinstance(result, LevelResult)
    assert (result.concurrency, result.admission_cap) == (8, 8)
    assert result.running_requests == pytest.approx(8, abs=0.5)
    assert result.queued_requests is not None
    assert result.queued_requests > 20
    assert result.ttft_s is not None
    assert result.ttft_s.p50 > 1.0
    assert running.gauges().max_running_requests == own_cap


def test_texts_that_begin_alike_share_segments() -> None:
    begin = "s" * 4096
    prompts = [begin + tail * 1024 for tail in ("a", "b")]
    requests = [Request(str(at), Text(text), 1280, 10, 10) for at, text in enumerate(prompts)]
    first, second = (segments_of(request) for request in requests)
    assert first[:4] == second[:4]
    assert first[4] != second[4]
    assert sum(tokens for _, tokens in first) == 1280


def test_a_short_level_is_looked_at_oftener() -> None:
    assert LevelLimits(1200.0).sample_every_s == 2.0
    assert LevelLimits(30.0).sample_every_s == 0.25
    short = measure_level(engine(), load_workload("random:in=200,out=100,cv=0.3", seed=1), 16, LevelLimits(30.0))
    long = measure_level(engine(), load_workload("random:in=200,out=100,cv=0.3", seed=1), 16, LevelLimits(600.0))
    assert isinstance(short, LevelResult)
    assert isinstance(long, LevelResult)
    assert short.completion_rate.is_measurement
    assert short.completion_rate.value == pytest.approx(long.completion_rate.value, rel=0.05)
