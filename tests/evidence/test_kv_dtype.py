"""One name for each KV dtype, and which one is in use."""

from __future__ import annotations

import pytest

from launcher.dtype import bytes_per_element, dtype_in_use, normalize_dtype
from launcher.errors import UsageError


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
    assert bytes_per_element("nvfp4") == pytest.approx(0.5625)
    assert dtype_in_use(bytes_per_token=33 / 32, elements_per_token=1, asked="mxfp8") == "mxfp8"
