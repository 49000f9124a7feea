"""KV-cache dtypes: one name each, and which one a server really uses.

SGLang's `auto` may silently be FP8 (DeepSeek DSA on SM100, DeepSeek-V4, checkpoints that carry a KV scheme), so a
quality allowlist is about the dtype in use, not the one asked for. Facts: flags of 0.4.10-0.5.23, and the log lines
"Using KV cache dtype: torch.float8_e4m3fn" (0.5.6-0.5.12) and "KV Cache is allocated. dtype: torch.bfloat16, ..."
(0.5.14 and later).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.errors import UsageError

_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "mxfp8": 33 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "fp4_e2m1": 0.5 + 1 / 16,
    "fp4_mx_block16": 0.5 + 1 / 16,
}
"""Bytes of one element, the block scales (one byte for 32 elements in mxfp8, for 16 in the fp4 forms) included."""
_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float8_e4m3": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
    "e5m2": "fp8_e5m2",
    "float4_e2m1fn_x2": "fp4_e2m1",
}
_TOLERANCE = 0.02
"""Arithmetic from figures that are rounded to 0.01 GiB."""


def normalize_dtype(name: str) -> str:
    """The one name of a KV-cache dtype: "bf16", "torch.bfloat16" and "bfloat16" are the same.

    Raises UsageError for `auto`, for a bare `fp8` and for names that SGLang never had.
    """
    plain = name.strip().lower().removeprefix("torch.")
    plain = _ALIASES.get(plain, plain)
    if plain in _BYTES:
        return plain
    if plain == "auto":
        raise UsageError(
            "kv-cache-dtype: auto is not a dtype: SGLang may turn it into FP8 without a word, depending on model, GPU "
            "and checkpoint; name the dtypes that you accept, such as bfloat16"
        )
    if plain == "fp8":
        raise UsageError("kv-cache-dtype: fp8 means two things that differ in quality; write fp8_e4m3 or fp8_e5m2")
    raise UsageError(f"kv-cache-dtype: {name!r} is none of {', '.join(_BYTES)}")


def kv_elements_per_token(model_config: Mapping[str, Any], ranks_per_pool: int) -> int | None:
    """Elements of KV cache per token and rank, from a model's config.json; None for models whose layers differ.

    MHA and GQA: 2 · layers · kv_heads/ranks · head_dim (heads are copied where there are more ranks than heads).
    MLA: layers · (kv_lora_rank + qk_rope_head_dim), the same on every rank (physics of SGLang 0.5.6-0.5.23).
    """
    text = model_config.get("text_config")
    config = text if isinstance(text, Mapping) else model_config
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    kinds = config.get("layer_types")
    if not layers or not heads or (isinstance(kinds, list) and len(set(kinds)) > 1) or _is_hybrid(config):
        return None
    if config.get("kv_lora_rank"):
        return int(layers * (config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)))
    kv_heads = max(1, (config.get("num_key_value_heads") or heads) // ranks_per_pool)
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return int(2 * layers * kv_heads * head_dim) or None


def _is_hybrid(config: Mapping[str, Any]) -> bool:
    """Layers without KV, or with a window of their own."""
    names = ("full_attention_interval", "attn_layer_period", "hybrid_override_pattern", "index_topk")
    return any(config.get(name) for name in names)


def dtype_in_use(
    *,
    logged: str | None = None,
    asked: str | None = None,
    bytes_per_token: float | None = None,
    elements_per_token: int | None = None,
) -> str | None:
    """The dtype that a server's KV cache has, normalised; None where nothing proves it.

    `logged` is the log's word and the best there is. Next comes arithmetic: KV bytes per token and rank
    (`memory_usage.kvcache` ÷ `token_capacity`) over elements per token and rank (MHA: 2·layers·kv_heads/tp·head_dim;
    MLA: layers·(kv_lora_rank + qk_rope_head_dim)); it tells widths apart, so `asked` decides between the two FP8 forms.
    """
    if logged is not None:
        return normalize_dtype(logged)
    if bytes_per_token is None or not elements_per_token:
        return None
    width = bytes_per_token / elements_per_token
    fitting = [name for name, each in _BYTES.items() if abs(width - each) <= _TOLERANCE * each]
    named = None if asked in (None, "auto") else normalize_dtype(str(asked))
    if named in fitting:
        return named
    return fitting[0] if len(fitting) == 1 else _only_default(fitting)


def _only_default(fitting: list[str]) -> str | None:
    """Of 2-byte forms bfloat16: SGLang's KV pools follow the model's dtype, and nobody can ask for float16. FP8 without
    a name stays undecided between its two forms, except that `auto` only ever becomes e4m3."""
    if "bfloat16" in fitting:
        return "bfloat16"
    return "fp8_e4m3" if "fp8_e4m3" in fitting else None
