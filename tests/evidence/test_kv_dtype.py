"""One name for each KV dtype, and which one is in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.dtype import dtype_in_use, kv_elements_per_token, normalize_dtype
from launcher.errors import UsageError
from launcher.observe import sample_from_server_info
from launcher.observe.in_use import with_dtype_in_use


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("BFloat16", "bfloat16"),
        ("torch.float8_e4m3fn", "fp8_e4m3"),
        ("torch.float8_e4m3fnuz", "fp8_e4m3"),
        ("float8_e5m2", "fp8_e5m2"),
        ("nvfp4", "nvfp4"),
    ],
)
def test_aliases(name: str, plain: str) -> None:
    assert normalize_dtype(name) == plain


@pytest.mark.parametrize(
    ("name", "reason"), [("auto", "may turn it into FP8"), ("fp8", "two things"), ("int3", "none")]
)
def test_what_cannot_be_allowed(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        normalize_dtype(name)


def test_the_log_is_believed_before_arithmetic() -> None:
    assert dtype_in_use(logged="torch.float8_e5m2", bytes_per_token=2.0, elements_per_token=1) == "fp8_e5m2"


def test_arithmetic_of_the_h200_runs() -> None:
    """Qwen2.5-32B: 2 · 64 layers · 8 heads · 128 elements; DeepSeek-V2-Lite (MLA): 27 layers · 576."""
    qwen, deepseek = 2 * 64 * 8 * 128, 27 * 576
    assert dtype_in_use(bytes_per_token=262_148, elements_per_token=qwen) == "bfloat16"
    assert dtype_in_use(bytes_per_token=131_074, elements_per_token=qwen, asked="auto") == "fp8_e4m3"
    assert dtype_in_use(bytes_per_token=131_074, elements_per_token=qwen, asked="fp8_e5m2") == "fp8_e5m2"
    assert dtype_in_use(bytes_per_token=31_104, elements_per_token=deepseek) == "bfloat16"


def test_what_nothing_proves_is_not_known() -> None:
    assert dtype_in_use(asked="bfloat16") is None
    assert dtype_in_use(bytes_per_token=3.0, elements_per_token=1) is None


def test_a_block_scaled_dtype_has_its_scales() -> None:
    assert dtype_in_use(bytes_per_token=33 / 32, elements_per_token=1, asked="mxfp8") == "mxfp8"
    assert dtype_in_use(bytes_per_token=0.5625, elements_per_token=1, asked="nvfp4") == "nvfp4"


QWEN = {"num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128}
KIMI = {
    "text_config": {"num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
}


@pytest.mark.parametrize(
    ("config", "ranks", "elements"),
    [
        (QWEN, 1, 131_072),
        (QWEN, 8, 16_384),
        (QWEN, 16, 16_384),
        (KIMI, 8, 35_136),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, 1, 256),
        ({**QWEN, "layer_types": ["full_attention", "sliding_attention"]}, 1, None),
        ({**QWEN, "full_attention_interval": 4}, 1, None),
        ({}, 1, None),
    ],
)
def test_elements_of_a_token(config: dict[str, object], ranks: int, elements: int | None) -> None:
    assert kv_elements_per_token(config, ranks) == elements


@pytest.mark.parametrize(("kvcache_gib", "dtype"), [(57.199, "fp8_e4m3"), (114.398, "bfloat16"), (0.1, None)])
def test_what_an_auto_has_become(tmp_path: Path, kvcache_gib: float, dtype: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    memory = {"kvcache": kvcache_gib, "token_capacity": 468_577}
    info = {"model_path": str(tmp_path), "kv_cache_dtype": "auto", "internal_states": [{"memory_usage": memory}]}
    assert with_dtype_in_use(sample_from_server_info(info)).facts.kv_cache_dtype == dtype
    info["model_path"] = "Qwen/Qwen2.5-32B"
    assert with_dtype_in_use(sample_from_server_info(info)).facts.kv_cache_dtype is None
