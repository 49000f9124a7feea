from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher.gpus import GpuProcess, GpuSample
from launcher.observe.sample import ServerFacts, Totals
from tui.diagnose import RULES, diagnose
from tui.diagnose.card import card
from tui.snapshot import (
    Finding,
    GpuView,
    MemoryParts,
    Pool,
    Quantiles,
    Rates,
    Reach,
    ServerView,
    Severity,
    Snapshot,
)

GIB = 2**30
FIELD_REPORT = ServerView(
    "http://127.0.0.1:30000",
    Reach.UP,
    0.2,
    facts=ServerFacts(
        kv_cache_dtype="bfloat16",
        kv_cache_dtype_asked="bfloat16",
        mem_fraction_static=0.88,
        tp_size=8,
        weights_gib=72.37,
        kv_cache_gib=10.42,
        headroom_gib=5.53,
        hicache_size_gb=48,
    ),
    pool=Pool(72, 79, 0, 152_906, 2000, 4371, 159_277, 0.96, 930.0, 2048),
    rates=Rates(responses_per_s=0.47, retractions_per_s=0.0, prefill_tokens_per_s=940.0, gen_tokens_per_s=930.0),
    sources=("metrics",),
)
QUIET = replace(
    FIELD_REPORT,
    facts=ServerFacts(),
    pool=Pool(40, 0, 0, 80_000, 0, 79_277, 159_277, 0.5, 600.0, 2048),
    rates=Rates(responses_per_s=0.5, retractions_per_s=0.0, gen_tokens_per_s=600.0),
)


@pytest.fixture
def with_ranks() -> Callable[[ServerView], ServerView]:
    from launcher.observe.sample import RankSample

    return lambda server: replace(server, ranks=(RankSample(capacity_tokens=server.pool.capacity_tokens),))


def rules_of(server: ServerView, *gpus: GpuView) -> list[str]:
    return [finding.rule for finding in diagnose(Snapshot(0.0, (server,), gpus)) if finding.url]


def first(server: ServerView, *gpus: GpuView) -> Finding:
    return diagnose(Snapshot(0.0, (server,), gpus))[0]


def gpu(index: int, **changes: object) -> GpuView:
    sample = GpuSample(
        index,
        "x",
        memory_total_bytes=96 * GIB,
        memory_used_bytes=90 * GIB,
        utilization_share=0.98,
        power_w=480.0,
        temperature_c=70.0,
        processes=(GpuProcess(10, 90 * GIB),),
    )
    return GpuView(replace(sample, **changes), MemoryParts(), FIELD_REPORT.url)  # type: ignore[arg-type]


def test_the_field_reports_ceiling_in_its_own_numbers(with_ranks: Callable[[ServerView], ServerView]) -> None:
    finding = first(with_ranks(FIELD_REPORT))
    assert finding.rule == "kv_ceiling"
    assert finding.evidence == (
        "159 K tokens ÷ 2.12 K in flight per request ≈ 75 running; 79 wait; HiCache cannot help decoding requests"
    )
    assert finding.tries[0] == "raise mem-fraction-static (+14.4 K tokens per 0.01, 5.5 GiB left)"


def test_no_more_fraction_is_advised_where_none_is_left(with_ranks: Callable[[ServerView], ServerView]) -> None:
    """The field report's 0.93: 0.82 GiB were left, and a large prefill was its end."""
    tight = replace(FIELD_REPORT, facts=replace(FIELD_REPORT.facts, headroom_gib=0.82))
    assert first(with_ranks(tight)).tries[0] == (
        "mem-fraction-static is at its end: 0.8 GiB left, 0.01 more takes 0.94"
    )


def test_a_smaller_dtype_is_not_offered_to_who_has_it() -> None:
    tries = first(replace(FIELD_REPORT, facts=replace(FIELD_REPORT.facts, kv_cache_dtype="fp8_e4m3",
                                                      kv_cache_dtype_asked="fp8_e4m3"))).tries  # fmt: skip
    assert not any("dtype" in attempt for attempt in tries)


@pytest.mark.parametrize(
    ("server", "rule"),
    [
        (replace(QUIET, pool=replace(QUIET.pool, used_tokens=40_000, usage_share=0.25)), "too_few_clients"),
        (replace(FIELD_REPORT, rates=replace(FIELD_REPORT.rates, retractions_per_s=0.2)), "retraction_storm"),
        (replace(QUIET, pool=replace(QUIET.pool, queued=30)), "conservative_admission"),
        (replace(QUIET, pool=replace(QUIET.pool, queued=30, max_running=40)), "request_cap"),
        (
            replace(
                QUIET,
                pool=replace(QUIET.pool, queued=30),
                rates=replace(QUIET.rates, prefill_tokens_per_s=9000.0, gen_tokens_per_s=300.0),
            ),
            "prefill_bound",
        ),
        (replace(QUIET, rates=replace(QUIET.rates, eager_share=0.6)), "eager_decode"),
        (
            replace(QUIET, facts=ServerFacts(kv_cache_dtype="fp8_e4m3", kv_cache_dtype_asked="auto")),
            "dtype_not_asked",
        ),
        (
            replace(
                QUIET,
                pool=replace(QUIET.pool, host_used_tokens=990, host_total_tokens=1000),
                rates=replace(QUIET.rates, evicted_tokens_per_s=800.0, load_back_tokens_per_s=500.0),
            ),
            "host_pool_thrash",
        ),
        (
            replace(
                QUIET,
                pool=replace(QUIET.pool, host_used_tokens=500, host_total_tokens=1000),
                rates=replace(QUIET.rates, evicted_tokens_per_s=800.0, load_back_tokens_per_s=0.0),
            ),
            "host_pool_idle",
        ),
        (
            replace(QUIET, totals=Totals(decoded_tokens=9.0), rates=replace(QUIET.rates, stalled_s=25.0)),
            "hung",
        ),
        (replace(QUIET, pool=Pool(0, 0, capacity_tokens=100)), "idle"),
        (replace(QUIET, pool=Pool(), sources=("server_info",)), "unknown"),
        (replace(QUIET, reach=Reach.DOWN, problem="refused"), "down"),
        (replace(QUIET, reach=Reach.STALE, problem="timed out", age_s=4.0), "stale"),
        (replace(QUIET, reach=Reach.LOCKED, problem="401"), "needs_key"),
    ],
)
def test_each_rule_speaks_where_it_should(server: ServerView, rule: str) -> None:
    assert rule in rules_of(server)


def test_a_server_that_keeps_up_is_left_in_peace() -> None:
    busy = replace(QUIET, pool=replace(QUIET.pool, used_tokens=130_000, usage_share=0.82))
    assert rules_of(busy) == ["keeps_up"]


def test_auto_that_became_bfloat16_is_what_was_asked() -> None:
    facts = ServerFacts(kv_cache_dtype="bfloat16", kv_cache_dtype_asked="auto")
    assert "dtype_not_asked" not in rules_of(replace(QUIET, facts=facts))


def test_finished_tokens_alone_are_no_proof_of_a_hang() -> None:
    """Before 0.5.9 only finished responses count: silence must outlast several latencies."""
    e2e = Quantiles(60.0, 100.0, 120.0, 150.0, 40)
    server = replace(QUIET, rates=replace(QUIET.rates, stalled_s=120.0, e2e=e2e))
    assert "hung" not in rules_of(server)
    assert "hung" in rules_of(replace(server, rates=replace(server.rates, stalled_s=500.0)))


def test_one_slow_gpu_among_eight() -> None:
    gpus = [gpu(i) for i in range(7)] + [gpu(7, throttle_reasons=("thermal (hardware)",), power_w=210.0)]
    findings = diagnose(Snapshot(0.0, (FIELD_REPORT,), tuple(gpus)))
    slow = next(finding for finding in findings if finding.rule == "slow_gpu")
    assert slow.gpu_index == 7
    assert "210 W" in slow.evidence


def test_low_power_alone_points_at_the_gpu() -> None:
    gpus = [gpu(i) for i in range(7)] + [gpu(7, power_w=210.0)]
    assert "slow_gpu" in rules_of(FIELD_REPORT, *gpus)


def test_a_power_cap_on_all_is_normal() -> None:
    assert "slow_gpu" not in rules_of(FIELD_REPORT, *(gpu(i, throttle_reasons=("power cap",)) for i in range(8)))


def test_memory_held_by_a_stranger_is_told_in_tokens(with_ranks: Callable[[ServerView], ServerView]) -> None:
    view = replace(gpu(3), strangers=((4242, 7 * GIB, "python train.py"),))
    findings = diagnose(Snapshot(0.0, (with_ranks(FIELD_REPORT),), (view,)))
    stranger = next(finding for finding in findings if finding.rule == "stranger")
    assert stranger.evidence == "pid 4242 (python train.py) holds 7.0 GiB of GPU 3: 107 K KV tokens' worth"


def test_a_lost_gpu_is_the_gravest() -> None:
    view = GpuView(GpuSample(2, "x", lost=True))
    assert first(FIELD_REPORT, view).rule == "gpu_lost"
    assert first(FIELD_REPORT, view).severity is Severity.CRITICAL


def test_rules_have_no_opinion_on_what_is_not_known() -> None:
    empty = ServerView("http://x:1", Reach.UP)
    assert all(rule(empty, ()) is None for rule in RULES)


def test_the_card_names_evidence_and_advice(with_ranks: Callable[[ServerView], ServerView]) -> None:
    server = with_ranks(FIELD_REPORT)
    snapshot = Snapshot(0.0, (server,), findings=diagnose(Snapshot(0.0, (server,))))
    text = card(snapshot)
    assert "[warning] KV ceiling: 159 K tokens ÷ 2.12 K in flight" in text
    assert "try: raise mem-fraction-static (+14.4 K tokens per 0.01, 5.5 GiB left)" in text
    assert card(snapshot, ascii_only=True).isascii()
