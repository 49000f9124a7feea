"""The memory model against the tables of two independent sources: a field report and four H200 starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.failure import Culprit, Direction, Failure, FailureNumbers, Kind, Stage
from launcher.timeline import MemorySeen, Timeline
from tuner.errors import StudyFileError
from tuner.memory import HostMemory, MemoryPrior, learn_memory, plan_table, read_geometry
from tuner.memory.default_fraction import default_mem_fraction
from tuner.memory.host import HostEvidence, host_survival
from tuner.trial import Proposal, Purpose, Setting, TrialResult, TrialState

GIB = 2**30
KIMI_TOKEN_BYTES = 61 * (512 + 64) * 2

KIMI_CONFIG = {
    "model_type": "kimi_k25",
    "text_config": {
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}},
    },
}
QWEN_CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 152064,
}


def written(directory: Path, config: object) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def seen(before: float, weights: float, fraction: float, token_bytes: float, headroom: float) -> MemorySeen:
    pool = fraction * before - weights
    return MemorySeen(
        before_weights_gib=before,
        weights_gib=weights,
        kv_cache_gib=round(pool, 2),
        capacity_tokens=int(pool * GIB / token_bytes),
        kv_cache_dtype="bfloat16",
        headroom_gib=headroom,
    )


def failed(setting: Setting, failure: Failure, timeline: Timeline | None = None) -> TrialResult:
    proposal = Proposal(setting, (), Purpose.EXPLORE, "", 0.0)
    return TrialResult(1, proposal, TrialState.FAILED, timeline, failure=failure)


def measured(setting: Setting, memory: MemorySeen) -> TrialResult:
    proposal = Proposal(setting, (), Purpose.FIRST, "", 0.0)
    return TrialResult(0, proposal, TrialState.MEASURED, Timeline(memory=memory, ready_s=60.0))


@pytest.mark.parametrize(
    ("fraction", "dtype", "tokens"),
    [
        (0.85, "bfloat16", 116_000),
        (0.88, "bfloat16", 159_277),
        (0.93, "bfloat16", 231_000),
        (0.90, "fp8_e4m3", 376_000),
    ],
)
def test_field_report_follows_from_its_start_at_088(fraction: float, dtype: str, tokens: int) -> None:
    started = seen(94.07, 72.37, 0.88, KIMI_TOKEN_BYTES, headroom=5.5)
    (row,) = plan_table(
        None,
        95.6,
        tp_size=8,
        kv_cache_dtypes=(dtype,),
        fractions=(fraction,),
        started=started,
        started_fraction=0.88,
    )
    assert row.tokens == pytest.approx(tokens, rel=0.003)


def test_field_report_headroom_and_death_at_093() -> None:
    started = seen(94.07, 72.37, 0.88, KIMI_TOKEN_BYTES, headroom=5.53)
    safe, deadly = plan_table(None, 95.6, fractions=(0.88, 0.93), started=started, started_fraction=0.88)
    assert safe.headroom_gib == pytest.approx(5.53, abs=0.05)
    assert deadly.headroom_gib == pytest.approx(0.82, abs=0.05)
    assert safe.survival > 0.97 > deadly.survival


@pytest.mark.parametrize(
    ("fraction", "tokens", "headroom"), [(0.97, 302_705, 2.95), (0.98, 308_406, 1.45), (0.985, 311_257, 0.95)]
)
def test_h200_starts_follow_from_the_one_at_097(tmp_path: Path, fraction: float, tokens: int, headroom: float) -> None:
    started = seen(139.13, 61.04, 0.97, 262_144, headroom=2.95)
    path = written(tmp_path, QWEN_CONFIG)
    (row,) = plan_table(path, 140.4, fractions=(fraction,), started=started, started_fraction=0.97)
    assert row.tokens == pytest.approx(tokens, rel=0.002)
    assert row.headroom_gib == pytest.approx(headroom, abs=0.2)


def test_h200_boundary_after_the_crash_at_098(tmp_path: Path) -> None:
    """The crash wanted 1.69 GiB where 1.06 were free: the next plan keeps away from it and still allows 0.96."""
    prior = MemoryPrior(read_geometry(written(tmp_path, QWEN_CONFIG)), 140.4, chunk_tokens=16_384)
    oom = Failure(
        kind=Kind.GPU_OOM_RUNTIME,
        stage=Stage.FIRST_PREFILL,
        mem_fraction_direction=Direction.DOWN,
        culprit=Culprit.CONFIGURATION,
        retry=False,
        sentence="out of memory in the first prefill",
        numbers=FailureNumbers(tried_gib=1.69, gpu_free_gib=1.06),
    )
    memory = seen(139.13, 61.04, 0.98, 262_144, headroom=1.45)
    model = learn_memory(prior, [failed(Setting(0.98, "bfloat16"), oom, Timeline(memory=memory))])
    chance = {f: model.predict(Setting(f, "bfloat16")).survival_probability for f in (0.96, 0.97, 0.98, 0.985)}
    assert chance[0.98] < 0.05
    assert chance[0.985] < 0.01
    assert chance[0.96] > 0.95


def test_config_alone_gives_bytes_per_token(tmp_path: Path) -> None:
    kimi = read_geometry(written(tmp_path, KIMI_CONFIG))
    assert kimi.bytes_per_token("bfloat16", 8) == 70_272
    assert kimi.bytes_per_token("fp8_e4m3", 8) == 35_136
    assert kimi.weights_bytes / 8 / GIB == pytest.approx(69.3, rel=0.06)
    qwen = read_geometry(written(tmp_path, QWEN_CONFIG))
    assert qwen.bytes_per_token("bfloat16", 1) == 262_144
    assert qwen.bytes_per_token("bfloat16", 4) == 65_536
    assert qwen.weights_bytes / GIB == pytest.approx(61.04, rel=0.02)
    assert qwen.prefill_transient_gib(16_384, 1) == pytest.approx(1.69, abs=0.01)


def test_plan_from_the_config_alone_is_near_and_says_how_near(tmp_path: Path) -> None:
    path = written(tmp_path, QWEN_CONFIG)
    (row,) = plan_table(path, 143_771 / 1024, fractions=(0.85,))
    assert abs(row.tokens - 234_288) < 2 * row.tokens_sd
    assert row.survival > 0.9
    (low,) = plan_table(path, 143_771 / 1024, fractions=(0.40,))
    assert low.survival < 0.2
    assert low.weakest_stage is Stage.KV_POOL


def test_minimum_viable_fraction_is_w_over_b() -> None:
    too_low = Failure(
        kind=Kind.GPU_OOM_STARTUP_KV,
        stage=Stage.KV_POOL,
        mem_fraction_direction=Direction.UP,
        culprit=Culprit.CONFIGURATION,
        retry=False,
        sentence="no room for the KV cache",
        numbers=FailureNumbers(minimum_mem_fraction=0.4391),
    )
    model = learn_memory(MemoryPrior(gpu_total_gib=140.4), [failed(Setting(0.40, "bfloat16"), too_low)])
    assert model.weights_gib.mean / model.before_gib.mean == pytest.approx(0.4391)
    assert model.predict(Setting(0.40, "bfloat16")).survival_probability < 0.05
    assert model.predict(Setting(0.70, "bfloat16")).survival[Stage.KV_POOL] > 0.95


def test_infrastructure_failures_teach_no_boundary() -> None:
    started = measured(Setting(0.85, "bfloat16"), seen(94.07, 72.37, 0.85, KIMI_TOKEN_BYTES, 8.35))
    busy = Failure(
        kind=Kind.GPU_BUSY_OTHER_PROCESS,
        stage=Stage.UNDER_LOAD,
        mem_fraction_direction=Direction.DOWN,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence="another process holds 20 GiB",
    )
    setting = Setting(0.86, "bfloat16")
    prior = MemoryPrior(gpu_total_gib=95.6)
    before = learn_memory(prior, [started]).predict(setting)
    after = learn_memory(prior, [started, failed(setting, busy)]).predict(setting)
    assert after.survival_probability == before.survival_probability


@pytest.mark.parametrize(
    ("gpu_mib", "is_mla", "fraction"),
    [
        (143_771, False, 0.893),
        (143_771, True, 0.886),
        (81_559, False, 0.812),
        (81_559, True, 0.799),
        (183_359, False, 0.849),
        (183_359, True, 0.844),
    ],
)
def test_sglangs_own_default(gpu_mib: int, is_mla: bool, fraction: float) -> None:
    assert default_mem_fraction(gpu_mib / 1024, tp_size=8, is_mla=is_mla) == pytest.approx(fraction, abs=0.0006)


def test_host_pool_rules() -> None:
    old = HostMemory(500 * 10**9, ranks=8, sglang_version="0.5.14")
    assert host_survival(10, old, HostEvidence(), device_pool_gb=11) == 0.0
    box = HostMemory(500 * 10**9, ranks=8, sglang_version="0.5.17")
    assert host_survival(40, box, HostEvidence(), device_pool_gb=11) > 0.9
    assert host_survival(100, box, HostEvidence(), device_pool_gb=11) < 0.1
    racing = HostMemory(500 * 10**9, ranks=8, sglang_version="0.5.21")
    assert host_survival(40, racing, HostEvidence(), device_pool_gb=11) < 0.9
    assert host_survival(40, None, HostEvidence(smallest_failed_gb=30.0), device_pool_gb=11) == 0.0
    bound = HostMemory(500 * 10**9, 8, "0.5.17", numa_available_bytes=100 * 10**9, ranks_per_numa=4)
    assert host_survival(40, bound, HostEvidence(), device_pool_gb=11) < 0.1


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden_size": 0}'])
def test_bad_config_is_one_sentence_with_its_place(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StudyFileError, match=r"config\.json: "):
        read_geometry(path)
    with pytest.raises(StudyFileError, match="no such file"):
        read_geometry(tmp_path / "nowhere.json")


def test_a_pinned_pool_caps_every_setting() -> None:
    prior = MemoryPrior(gpu_total_gib=140.4, max_total_tokens=100_000)
    free = MemoryPrior(gpu_total_gib=140.4)
    setting = Setting(0.85, "bfloat16")
    assert learn_memory(prior, ()).predict(setting).tokens == pytest.approx(100_000)
    assert learn_memory(free, ()).predict(setting).tokens > 100_000


@pytest.mark.parametrize("cap", [1024, 4096])
def test_a_capped_pool_that_surely_fits_is_not_doubted(cap: int) -> None:
    """A CPU's free memory differs from start to start by more than a small pool takes; the cap decides, not that."""
    shown = [
        MemorySeen(
            before_weights_gib=before, weights_gib=0.0, kv_cache_gib=0.0, capacity_tokens=1024, headroom_gib=left
        )
        for before, left in ((16.41, 16.4), (18.25, 18.24))
    ]
    history = [measured(Setting(0.05, "bfloat16", 0, {"max-total-tokens": 1024}), seen) for seen in shown]
    model = learn_memory(MemoryPrior(shortest_pool_tokens=266), history)
    predicted = model.predict(Setting(0.05, "bfloat16", 0, {"max-total-tokens": cap}))
    assert predicted.tokens == pytest.approx(cap)
    assert predicted.tokens_sd < 0.05 * cap
    assert predicted.survival_probability > 0.95
    too_small = model.predict(Setting(0.05, "bfloat16", 0, {"max-total-tokens": 128}))
    assert too_small.survival[Stage.KV_POOL] == 0.0
