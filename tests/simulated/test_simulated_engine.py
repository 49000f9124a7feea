"""The engine: same seed, same events; nothing lost, nothing overfull; every flag has its effect."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import FlagValue, ServerConfig
from launcher.errors import LauncherError, UsageError
from launcher.simulated.engine import Engine
from launcher.simulated.events import (
    Aborted,
    Crashed,
    DecodeLogged,
    Event,
    Finished,
    FirstToken,
    Gauges,
    PrefillLogged,
    RetractLogged,
    SimRequest,
)
from launcher.simulated.faults import EngineFaults
from launcher.simulated.presets import Preset, load_preset, with_overrides

KIMI = load_preset("kimi-k2.5-8x-rtx-pro-6000")
QUIET = with_overrides(KIMI, {"noise.start_sd_share": 0, "noise.drift_sd_share": 0, "noise.transient_sd_share": 0})


def engine(
    fraction: float = 0.88, dtype: str = "bfloat16", hicache_gb: int = 0, preset: Preset = QUIET, seed: int = 1,
    faults: EngineFaults | None = None, record_log: bool = False, **flags: FlagValue,
) -> Engine:  # fmt: skip
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    config = ServerConfig("m", fraction, dtype, hicache_gb, {"tp-size": 8, **named})
    return Engine(preset, config, seed=seed, faults=faults or EngineFaults(), record_log=record_log)


def request(number: int, prompt: int = 500, output: int = 100) -> SimRequest:
    return SimRequest(f"r{number}", ((number, prompt),), output)


def drain(server: Engine, for_s: float = 100_000.0) -> list[Event]:
    events: list[Event] = []
    until_s = server.now_s + for_s
    while server.now_s < until_s and server.dead is None:
        new = server.advance(until_s)
        events += new
        if not new:
            break
    return events


def closed_loop(
    server: Engine, clients: int, until_s: float, make: Callable[[int], SimRequest]
) -> tuple[list[Finished], Gauges]:
    """`clients` that always have one request each."""
    finished: list[Finished] = []
    for number in range(clients):
        server.submit(make(number))
    sent = clients
    while server.now_s < until_s and server.dead is None:
        for event in server.advance(until_s):
            if isinstance(event, Finished):
                finished.append(event)
                server.submit(make(sent))
                sent += 1
    return finished, server.gauges()


def varied(number: int) -> SimRequest:
    chance = random.Random(number)
    return request(number, chance.randint(200, 1500), chance.randint(200, 2500))


def test_one_request_is_timed_by_the_preset() -> None:
    server = engine()
    server.submit(request(1, prompt=1000, output=11))
    (event,) = drain(server)
    pace = KIMI.pace
    prefill = pace.prefill_base_s + 1000 * pace.prefill_per_token_s
    step = pace.decode_base_s + pace.decode_per_request_s + 1006 * pace.decode_per_context_token_s
    assert isinstance(event, Finished)
    assert event.first_token_s == pytest.approx(prefill)
    assert event.finish_s == pytest.approx(prefill + 10 * step, rel=0.001)
    assert (event.prompt_tokens, event.completion_tokens, event.stopped_at_limit) == (1000, 11, True)


def test_same_seed_same_events() -> None:
    runs = [closed_loop(engine(preset=KIMI, seed=5), 150, 1500, varied) for _ in range(2)]
    other = closed_loop(engine(preset=KIMI, seed=6), 150, 1500, varied)
    assert runs[0] == runs[1]
    assert runs[0][0] != other[0]


def test_how_time_is_cut_changes_nothing_but_rounding() -> None:
    whole, cut = engine(), engine()
    for number in range(40):
        whole.submit(varied(number))
        cut.submit(varied(number))
    ends = {event.request_id: event.finish_s for event in drain(whole) if isinstance(event, Finished)}
    at_s = 0.0
    while len(ends) and at_s < 2000:
        at_s += 0.37
        while cut.now_s < at_s:
            for event in cut.advance(at_s):
                assert isinstance(event, Finished)
                assert event.finish_s == pytest.approx(ends.pop(event.request_id), rel=1e-6)
    assert not ends


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 800), st.integers(0, 3)), min_size=1, max_size=60),
    st.sampled_from([0, 2]),
    st.sampled_from([256, 2048, 8192, -1]),
    st.sampled_from([1, 16, 64]),
)  # fmt: skip
def test_every_request_ends_once_and_the_pool_never_overflows(
    lengths: list[tuple[int, int, int]], hicache_gb: int, chunk: int, page: int
) -> None:
    server = engine(hicache_gb=hicache_gb, max_total_tokens=20_032, chunked_prefill_size=chunk, page_size=page)
    for number, (prompt, output, group) in enumerate(lengths):
        segments = ((-1 - group, 640), (number, prompt)) if group else ((number, prompt),)
        server.submit(SimRequest(f"r{number}", segments, output))
    ended: list[str] = []
    while len(ended) < len(lengths):
        ended += [event.request_id for event in server.advance(1e6) if isinstance(event, Finished)]
        gauges = server.gauges()
        assert gauges.used_tokens + gauges.evictable_tokens + gauges.available_tokens == 20_032
        assert min(gauges.used_tokens, gauges.evictable_tokens, gauges.available_tokens) >= 0
        assert gauges.host_used_tokens <= gauges.host_total_tokens
    assert sorted(ended) == sorted(f"r{number}" for number in range(len(lengths)))
    gauges = server.gauges()
    assert (gauges.running_requests, gauges.queued_requests, gauges.used_tokens) == (0, 0, 0)
    totals = gauges.counters
    assert totals.finished_generation_tokens == sum(output for _, output, _ in lengths)
    assert totals.decoded_tokens == totals.finished_generation_tokens - len(lengths) - totals.retracted_requests


def test_a_wave_grows_old_and_then_the_ages_mix() -> None:
    server = engine()
    _, early = closed_loop(server, 150, 30, lambda number: request(number, 300, 3900))
    assert early.queued_requests > 60
    events = closed_loop(server, 0, 3600, lambda number: request(number + 1000, 300, 3900))
    assert events[1].counters.retracted_requests > 10


def test_retraction_is_logged_and_raises_the_ratio() -> None:
    server = engine(record_log=True, max_total_tokens=30_000, schedule_conservativeness=0.1)
    closed_loop(server, 40, 600, varied)
    retractions = [record for record in server.take_log() if isinstance(record, RetractLogged)]
    assert retractions
    assert all(record.ratio_after > record.ratio_before for record in retractions)
    assert server.gauges().counters.retracted_output_tokens > 0


def test_conservativeness_trades_occupancy_for_retractions() -> None:
    def retracted(conservativeness: float) -> tuple[int, float]:
        server = engine(schedule_conservativeness=conservativeness)
        gauges = closed_loop(server, 150, 2400, varied)[1]
        return gauges.counters.retracted_requests, gauges.counters.decoded_tokens

    bold, careful = retracted(0.3), retracted(1.4)
    assert bold[0] > careful[0]


def test_fp8_raises_the_rate_and_hicache_without_shared_prefixes_does_not() -> None:
    def rate(dtype: str = "bfloat16", hicache_gb: int = 0) -> float:
        server = engine(dtype=dtype, hicache_gb=hicache_gb)
        return closed_loop(server, 150, 3600, varied)[1].counters.finished_generation_tokens / 3600

    plain = rate()
    assert rate("fp8_e4m3") > 1.1 * plain
    assert rate(hicache_gb=48) <= 1.02 * plain


def test_hicache_pays_when_prefixes_are_reused_more_widely_than_the_pool() -> None:
    def run(hicache_gb: int) -> Gauges:
        def make(number: int) -> SimRequest:
            return SimRequest(f"r{number}", ((-1 - number % 60, 6000), (number, 50)), 100)

        return closed_loop(engine(hicache_gb=hicache_gb), 30, 600, make)[1]

    without, with_tier = run(0), run(60)
    assert with_tier.load_back_tokens > 0
    assert with_tier.counters.finished_requests > 1.2 * without.counters.finished_requests


def test_shared_prefixes_share_the_pool() -> None:
    def make(number: int) -> SimRequest:
        return SimRequest(f"r{number}", ((7, 4000), (number, 100)), 200)

    server = engine()
    finished, gauges = closed_loop(server, 100, 300, make)
    assert gauges.running_requests > 40
    assert gauges.context_tokens > 2 * gauges.used_tokens
    assert sum(event.cached_tokens for event in finished) > 0


def test_disabled_radix_cache_keeps_nothing() -> None:
    _, gauges = closed_loop(engine(disable_radix_cache=True), 20, 300, varied)
    assert gauges.evictable_tokens == 0
    assert closed_loop(engine(), 20, 300, varied)[1].evictable_tokens > 0


def test_a_smaller_chunk_keeps_the_others_decoding() -> None:
    def slowest_gap(chunk: int) -> float:
        server = engine(record_log=True, chunked_prefill_size=chunk)
        server.submit(request(1, 100, 400))
        server.advance(2.0)
        server.submit(request(2, 30_000, 10))
        drain(server)
        prefills = [record for record in server.take_log() if isinstance(record, PrefillLogged)]
        return max(record.new_tokens for record in prefills)

    assert slowest_gap(1024) == 1024
    assert slowest_gap(8192) == 8192


def test_limits_on_running_and_queued_requests() -> None:
    server = engine(max_running_requests=10, max_queued_requests=5)
    for number in range(5):
        server.submit(request(number, output=500))
    server.advance(1.0)
    for number in range(5, 20):
        server.submit(request(number, output=500))
    refused = [event for event in server.advance(1.0) if isinstance(event, Aborted)]
    assert {event.status for event in refused} == {503}
    server.advance(5.0)
    assert server.gauges().running_requests == 10


def test_the_admission_cap_can_be_changed_live() -> None:
    server = engine()
    assert not server.limit_running(0)
    assert not server.limit_running(10**6)
    assert server.limit_running(3)
    for number in range(8):
        server.submit(request(number, output=2000))
    server.advance(20.0)
    assert server.gauges().running_requests == 3


def test_eager_decoding_is_slower() -> None:
    def finish_s(**flags: FlagValue) -> float:
        server = engine(**flags)
        for number in range(20):
            server.submit(request(number))
        return max(event.finish_s for event in drain(server) if isinstance(event, Finished))

    assert finish_s(cuda_graph_max_bs=8) > 1.2 * finish_s()
    assert finish_s(num_continuous_decode_steps=8) < finish_s()


def test_continuous_decode_steps_delay_but_never_starve() -> None:
    def made(number: int) -> SimRequest:
        return request(number, 200, 37 + number % 11)

    finished, gauges = closed_loop(engine(num_continuous_decode_steps=16, max_running_requests=8), 40, 600, made)
    plain, _ = closed_loop(engine(max_running_requests=8), 40, 600, made)
    assert 0.6 * len(plain) < len(finished) < len(plain)
    assert gauges.queued_requests >= 30


def test_too_long_a_prompt_is_refused_and_long_output_is_cut() -> None:
    server = engine(max_total_tokens=5000)
    server.submit(request(1, prompt=5000))
    (event,) = server.advance(1.0)
    assert isinstance(event, Aborted)
    assert event.status == 400
    server.submit(request(2, prompt=4000, output=3000))
    (end,) = drain(server)
    assert isinstance(end, Finished)
    assert end.completion_tokens == 998


def test_aborting_waiting_and_running_requests() -> None:
    server = engine(max_running_requests=1)
    server.submit(request(1, output=1000))
    server.submit(request(2))
    server.advance(3.0)
    server.abort("r2")
    server.abort("nobody")
    assert [event.request_id for event in server.advance(3.0)] == ["r2"]
    server.abort("r1")
    (event,) = server.advance(10.0)
    assert isinstance(event, Aborted)
    assert 0 < event.completion_tokens < 1000
    assert server.gauges().used_tokens == 0


def test_flush_needs_an_idle_server() -> None:
    server = engine()
    server.submit(request(1))
    assert not server.flush_cache()
    drain(server)
    assert server.gauges().evictable_tokens > 0
    assert server.flush_cache()
    assert server.gauges().evictable_tokens == 0


def test_a_high_fraction_dies_of_the_first_full_chunk_only() -> None:
    server = engine(0.93)
    server.submit(request(1, prompt=2000))
    assert isinstance(drain(server)[-1], Finished)
    server.submit(request(2, prompt=9000))
    crash = drain(server)[-1]
    assert isinstance(crash, Crashed)
    assert "CUDA out of memory. Tried to allocate 896.00 MiB" in crash.log_text
    assert (crash.exit_code, server.dead) == (-9, crash)


def test_a_configuration_that_cannot_start_is_refused() -> None:
    with pytest.raises(LauncherError, match="fraction_too_low"):
        engine(0.5)
    with pytest.raises(UsageError, match="mutually exclusive"):
        engine(hicache_gb=10, disable_radix_cache=True)
    with pytest.raises(UsageError, match="kv-cache-dtype: 'fp4'"):
        engine(dtype="fp4")


def test_faults_of_a_running_engine() -> None:
    stuck = engine(faults=EngineFaults(stuck_after_s=5.0))
    stuck.submit(request(1, output=1000))
    assert drain(stuck, 500.0) == []
    assert stuck.progress("r1") is not None
    crashing = engine(faults=EngineFaults(crash_after_s=60.0))
    finished, _ = closed_loop(crashing, 10, 600, lambda number: request(number))
    assert finished
    assert crashing.dead is not None
    assert "illegal memory access" in crashing.dead.log_text
    slow = engine(faults=EngineFaults(speed_factor=2.0))
    plain = engine()
    for server in (slow, plain):
        server.submit(request(1))
    assert drain(slow)[0].finish_s == pytest.approx(2 * drain(plain)[0].finish_s)  # type: ignore[union-attr]


def test_the_log_has_a_line_every_forty_steps() -> None:
    server = engine(record_log=True)
    server.submit(request(1, output=201))
    drain(server)
    decodes = [record for record in server.take_log() if isinstance(record, DecodeLogged)]
    assert len(decodes) == 5
    assert decodes[1].gen_tokens_per_s == pytest.approx(1 / 0.0468, rel=0.02)
    assert server.take_log() == []


def test_first_tokens_on_request() -> None:
    config = ServerConfig("m", 0.88, "bfloat16", flags={"tp-size": 8})
    server = Engine(QUIET, config, seed=1, report_first_tokens=True)
    server.submit(request(1))
    assert [type(event) for event in drain(server)] == [FirstToken, Finished]


def test_a_client_that_allows_more_than_it_gets_reserves_more() -> None:
    def running(max_new: int | None) -> int:
        server = engine()
        for number in range(200):
            server.submit(replace(request(number, 400, 300), max_new_tokens=max_new))
        server.advance(20.0)
        return server.gauges().running_requests

    assert running(4096) < running(None) / 2
