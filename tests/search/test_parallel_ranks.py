"""Data-parallel ranks, pipeline stages and many experts, held against what two H200s showed (SGLang 0.5.17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import ServerConfig
from launcher.timeline import MemorySeen, Timeline
from tuner.memory import MemoryPrior, read_geometry
from tuner.memory.learning import learn_memory
from tuner.search import Searcher
from tuner.space import Space
from tuner.trial import Proposal, Purpose, Setting, TrialResult, TrialState

MODELS = Path(__file__).parents[2] / "bench/h200x8/models"
SETTING = Setting(0.902, "bfloat16")


def prior_of(model: str, **parallel: int | bool) -> MemoryPrior:
    geometry = read_geometry(MODELS / model)
    return MemoryPrior(geometry=geometry, gpu_total_gib=139.8, tp_size=2, **parallel)  # type: ignore[arg-type]


def started(seen: MemorySeen) -> TrialResult:
    proposal = Proposal(SETTING, (64,), Purpose.FIRST, "", 100.0)
    return TrialResult(1, proposal, TrialState.MEASURED, Timeline(memory=seen))


@pytest.mark.parametrize(
    ("flags", "ranks", "dp"),
    [
        ({"tp-size": 8}, 8, 1),
        ({"tp-size": 2, "dp-size": 4}, 8, 4),
        ({"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, 8, 8),
        ({"tp-size": 8, "attn-dp-size": 8}, 8, 8),
        ({"tp": 4, "pp-size": 2}, 8, 1),
    ],
)
def test_a_servers_ranks(flags: dict[str, int | bool], ranks: int, dp: int) -> None:
    config = ServerConfig("m", flags=flags)
    assert (config.rank_count, config.dp_size) == (ranks, dp)


def test_a_70b_on_two_gpus_is_foreseen_and_then_known_exactly() -> None:
    prior = prior_of("llama70")
    before = learn_memory(prior, ()).predict(SETTING)
    assert before.tokens == pytest.approx(386_869, abs=before.tokens_sd)
    assert before.headroom_gib == pytest.approx(11.61, abs=before.headroom_sd_gib)
    seen = MemorySeen(138.31, 65.72, 59.04, 386_869, "bfloat16", 1.28, 11.61, 4096, 256, 32_768, 8_192)
    after = learn_memory(prior, (started(seen),)).predict(SETTING)
    assert after.tokens == pytest.approx(386_869, rel=0.005)
    assert after.headroom_gib == pytest.approx(11.61, abs=0.3)


def test_attention_of_a_data_parallel_rank_keeps_all_kv_heads() -> None:
    assert prior_of("llama70").bytes_per_token("bfloat16") == 163_840
    shared = prior_of("llama70", dp_size=2, dp_attention=True)
    assert shared.bytes_per_token("bfloat16") == 2 * 163_840


def test_every_data_parallel_rank_adds_a_pool() -> None:
    space = Space((0.8, 0.98), ("bfloat16",), (0,), (8, 64))
    seen = started(MemorySeen(138.31, 15.34, 102.23, 3_529_082, "bfloat16", 2.98, 16.96, 4096, 256, 32_768, 4_096))
    one, two = (
        Searcher(space, prior=prior_of("dsv3cut", dp_size=size, dp_attention=size > 1)).knowledge((seen,))
        for size in (1, 2)
    )
    assert two.tokens(SETTING) == 2 * one.tokens(SETTING) == 2 * 3_529_082
    assert two.tokens(Setting(0.85, "bfloat16")) == 2 * one.tokens(Setting(0.85, "bfloat16"))


def test_a_mixture_of_many_experts_is_not_trusted_with_little_room() -> None:
    """The DeepSeek-V3 shape with DP attention had 3.0 GiB left at 0.85 and died of its first prefill."""
    died = learn_memory(prior_of("dsv3cut", dp_size=2, dp_attention=True), ()).predict(Setting(0.85, "bfloat16"))
    assert died.headroom_gib - 3.0 < 2.5 * died.headroom_sd_gib
    assert died.survival_probability < 0.99
