"""Memory: the arithmetic of real starts, and the stage at which a start dies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import FlagValue, ServerConfig
from launcher.simulated.memory import MemoryPlan, StartDeath, plan_memory
from launcher.simulated.options import options_of
from launcher.simulated.presets import load_preset

KIMI = load_preset("kimi-k2.5-8x-rtx-pro-6000")
QWEN = load_preset("qwen2.5-32b-1x-h200")
DSV2 = load_preset("dsv2-lite-1x-h200")
NO_PREFILL_GRAPHS: dict[str, FlagValue] = {"disable-piecewise-cuda-graph": True}


def _qwen(fraction: float, dtype: str = "bfloat16", **flags: FlagValue) -> MemoryPlan:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    config = ServerConfig("m", fraction, dtype, flags={**NO_PREFILL_GRAPHS, **named})
    return plan_memory(QWEN, options_of(QWEN, config))


def _kimi(fraction: float, dtype: str = "bfloat16", taken: tuple[float, ...] = ()) -> MemoryPlan:
    config = ServerConfig("m", fraction, dtype, flags={"tp-size": 8})
    return plan_memory(KIMI, options_of(KIMI, config), taken_gib=taken)


@pytest.mark.parametrize(
    ("fraction", "dtype", "tokens", "headroom"),
    [
        (0.85, "fp8_e4m3", 468_577, 19.68),
        (0.97, "bfloat16", 302_705, 2.95),
        (0.98, "bfloat16", 308_406, 1.45),
        (0.985, "bfloat16", 311_257, 0.95),
    ],
)
def test_the_h200_starts(fraction: float, dtype: str, tokens: int, headroom: float) -> None:
    plan = _qwen(fraction, dtype)
    assert plan.death is None
    assert plan.capacity_tokens == pytest.approx(tokens, rel=1e-4)
    assert plan.headroom_gib == pytest.approx(headroom, abs=0.05)


@pytest.mark.parametrize(
    ("fraction", "dtype", "tokens"),
    [
        (0.85, "bfloat16", 116_072),
        (0.88, "bfloat16", 159_277),
        (0.93, "bfloat16", 231_066),
        (0.90, "fp8_e4m3", 375_887),
    ],
)
def test_the_field_report(fraction: float, dtype: str, tokens: int) -> None:
    assert _kimi(fraction, dtype).capacity_tokens == pytest.approx(tokens, rel=0.005)


def test_too_low_a_fraction_tells_the_minimum() -> None:
    plan = _qwen(0.40)
    assert plan.death is StartDeath.FRACTION_TOO_LOW
    assert round(plan.minimum_mem_fraction, 4) == 0.4391


def test_too_high_a_fraction_dies_later_and_later_as_it_falls() -> None:
    deaths = [_qwen(fraction).death for fraction in (0.999, 0.995, 0.992, 0.985)]
    assert deaths == [StartDeath.POOL_OOM, StartDeath.CUBLAS, StartDeath.DECODE_GRAPH_OOM, None]


def test_a_stranger_on_one_gpu_is_not_the_configurations_fault() -> None:
    assert _kimi(0.88, taken=(0.0, 20.0)).death is StartDeath.UNBALANCED
    poorer = _kimi(0.88, taken=(0.0, 2.0))
    assert poorer.death is None
    assert poorer.capacity_tokens < _kimi(0.88).capacity_tokens


def test_weights_that_do_not_fit() -> None:
    config = ServerConfig("m", 0.9, "bfloat16", flags={"tp-size": 4})
    assert plan_memory(KIMI, options_of(KIMI, config)).death is StartDeath.WEIGHTS_OOM


def test_host_memory_by_version() -> None:
    def death(size_gb: int, version: tuple[int, ...]) -> StartDeath | None:
        config = ServerConfig("m", 0.88, "bfloat16", size_gb, {"tp-size": 8})
        return plan_memory(KIMI, options_of(KIMI, config), version).death

    assert death(100, (0, 5, 17)) is None
    assert death(170, (0, 5, 17)) is StartDeath.HOST_OOM_KILLED
    assert death(170, (0, 5, 19)) is StartDeath.HOST_TOO_SMALL
    assert death(1300, (0, 5, 17)) is StartDeath.HOST_TOO_SMALL
    assert death(5, (0, 5, 14)) is StartDeath.HOST_POOL_SMALLER
    assert death(5, (0, 5, 17)) is None


def test_host_pool_in_tokens_is_decimal() -> None:
    config = ServerConfig("m", 0.85, "bfloat16", 20, {"max-total-tokens": 100_000})
    assert plan_memory(DSV2, options_of(DSV2, config)).host_tokens == 643_005


def test_flags_that_change_memory() -> None:
    plain = _qwen(0.85)
    assert _qwen(0.85, max_total_tokens=50_000).capacity_tokens == 50_000
    assert _qwen(0.85, max_total_tokens=10**9).capacity_tokens == plain.capacity_tokens
    assert _qwen(0.85, page_size=64).capacity_tokens % 64 == 0
    assert _qwen(0.85, cuda_graph_max_bs=64).headroom_gib > plain.headroom_gib
    assert _qwen(0.85, max_running_requests=100).max_running_requests == 100
    with_prefill_graphs = plan_memory(QWEN, options_of(QWEN, ServerConfig("m", 0.85)))
    assert with_prefill_graphs.headroom_gib < plain.headroom_gib - 2


@pytest.mark.parametrize(
    "flags",
    [
        {"disable-prefill-cuda-graph": True},
        {"disable-piecewise-cuda-graph": True},
        {"cuda-graph-backend-prefill": "disabled"},
    ],
)
def test_prefill_graphs_are_off_by_whichever_flag_says_so(flags: dict[str, FlagValue]) -> None:
    plain = plan_memory(QWEN, options_of(QWEN, ServerConfig("m", 0.85, flags=flags)))
    assert plain.prefill_graphs_gib == 0
    assert plain.decode_graphs_gib > 0


@pytest.mark.parametrize(
    "flags",
    [{"disable-decode-cuda-graph": True}, {"cuda-graph-backend-decode": "disabled"}, {"disable-cuda-graph": True}],
)
def test_decode_graphs_are_off_by_whichever_flag_says_so(flags: dict[str, FlagValue]) -> None:
    options = options_of(QWEN, ServerConfig("m", 0.85, flags=flags))
    assert options.graph_max_batch == 0
    assert options.prefill_graphs == ("disable-cuda-graph" not in flags)


@given(st.floats(0.5, 0.99), st.floats(0.001, 0.05))
def test_more_fraction_is_more_tokens_and_less_headroom(fraction: float, more: float) -> None:
    low, high = _qwen(fraction), _qwen(fraction + more)
    assert high.capacity_tokens >= low.capacity_tokens
    assert high.headroom_gib <= low.headroom_gib + 1e-9


@given(st.floats(0.46, 0.97))
def test_fp8_holds_twice_as_many_tokens(fraction: float) -> None:
    assert _qwen(fraction, "fp8_e4m3").capacity_tokens // 2 == pytest.approx(_qwen(fraction).capacity_tokens, abs=1)


def test_mla_is_not_divided_by_the_ranks_and_mha_is() -> None:
    llama = load_preset("llama-70b-8x-h100")
    plans = {
        size: plan_memory(llama, options_of(llama, ServerConfig("m", 0.9, flags={"tp-size": size}))) for size in (4, 8)
    }
    assert plans[4].bytes_per_token == 2 * plans[8].bytes_per_token
    assert _kimi(0.88).bytes_per_token == 61 * 576 * 2
