"""A model's shape, read from its config.json: what a KV token, the weights and a prefill chunk take.

Formulas (SGLang's `pool_configurator`, per token and rank):
    MHA/GQA: layers * max(1, kv_heads / tp) * (head_dim + v_head_dim) * element bytes
    MLA:     layers * (kv_lora_rank + qk_rope_head_dim) * element bytes     (the same on every rank)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.errors import StudyFileError
from tuner.space import ELEMENT_BYTES

GIB = 2**30
ALLOCATION_BYTES = 2 * 2**20
CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """The figures of a config.json that memory follows from. Sizes in elements, weights in bytes over all ranks."""

    model_type: str
    layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    kv_lora_rank: int | None = None
    """Set for MLA models (DeepSeek, Kimi); None for MHA and GQA."""
    qk_rope_head_dim: int = 0
    experts: int = 0
    weights_bytes: float = 0.0
    weights_known: bool = False
    """True: summed from the checkpoint's index; False: estimated from the shape and the quantisation."""
    context_tokens: int | None = None
    """As SGLang takes it where no flag says otherwise; None: config.json does not say."""

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank is not None

    def bytes_per_token(self, kv_cache_dtype: str, tp_size: int) -> float:
        """b: KV bytes per token and rank."""
        element_bytes = ELEMENT_BYTES[kv_cache_dtype]
        if self.kv_lora_rank is not None:
            return self.layers * (self.kv_lora_rank + self.qk_rope_head_dim) * element_bytes
        heads_per_rank = max(1, self.kv_heads // tp_size)
        return self.layers * heads_per_rank * 2 * self.head_dim * element_bytes

    def pool_gib(self, tokens: float, kv_cache_dtype: str, tp_size: int) -> float:
        """What a pool of that many tokens really takes: torch rounds each layer's buffer (two for MHA) up to 2 MiB."""
        buffers = self.layers * (1 if self.is_mla else 2)
        each = tokens * self.bytes_per_token(kv_cache_dtype, tp_size) / buffers
        return math.ceil(each / ALLOCATION_BYTES) * ALLOCATION_BYTES * buffers / GIB

    def prefill_transient_gib(self, chunk_tokens: int, tp_size: int) -> float:
        """What the gate and up projections of one prefill chunk take: chunk * 2 * intermediate / tp * 2 bytes.

        It was exactly the request that failed on an H200 (16,384 * 2 * 27,648 * 2 bytes = 1.69 GiB).
        """
        return chunk_tokens * 2 * self.intermediate_size / tp_size * 2 / GIB


def read_geometry(model_path: Path) -> ModelGeometry:
    """Read `config.json` (the file itself or the directory that holds it), and the weights' index where there is one.

    Raises StudyFileError naming the file and the key that is missing.
    """
    path = model_path / "config.json" if model_path.is_dir() else model_path
    config = _read_json(path)
    text = config.get("text_config") or config
    geometry = _geometry(text, path)
    known_bytes = _index_bytes(path.parent)
    if known_bytes is not None:
        return _with_weights(geometry, known_bytes, known=True)
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    return _with_weights(geometry, _estimated_weights_bytes(text, geometry, quantization), known=False)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyFileError(f"{path}: there is no such file; name a model's config.json or its directory") from None
    except (OSError, ValueError) as error:
        raise StudyFileError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise StudyFileError(f"{path}: must hold a JSON object")
    return loaded


def _geometry(text: Mapping[str, Any], path: Path) -> ModelGeometry:
    hidden = _number(text, "hidden_size", path)
    heads = _number(text, "num_attention_heads", path)
    experts = int(text.get("n_routed_experts") or text.get("num_local_experts") or text.get("num_experts") or 0)
    return ModelGeometry(
        model_type=str(text.get("model_type", "")),
        layers=_number(text, "num_hidden_layers", path),
        hidden_size=hidden,
        intermediate_size=_number(text, "intermediate_size", path),
        vocab_size=_number(text, "vocab_size", path),
        attention_heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        kv_lora_rank=text.get("kv_lora_rank"),
        qk_rope_head_dim=int(text.get("qk_rope_head_dim") or 0),
        experts=experts,
        context_tokens=_context_tokens(text),
    )


def _context_tokens(text: Mapping[str, Any]) -> int | None:
    """SGLang 0.5.17's `get_context_length`: the rope factor counts only where the length is the unscaled one."""
    scaling = text.get("rope_scaling") or {}
    scaled = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    longest = next((text[key] for key in CONTEXT_KEYS if text.get(key) is not None), None)
    return None if longest is None else int(longest * (1 if scaled else scaling.get("factor") or 1))


def _number(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise StudyFileError(f"{path}: {key}: {value!r} must be a whole number above 0")
    return value


def _index_bytes(directory: Path) -> float | None:
    """`metadata.total_size` of a sharded safetensors checkpoint, in bytes."""
    path = directory / "model.safetensors.index.json"
    if not path.is_file():
        return None
    total = _read_json(path).get("metadata", {}).get("total_size")
    return float(total) if isinstance(total, int | float) else None


def _with_weights(geometry: ModelGeometry, weights_bytes: float, *, known: bool) -> ModelGeometry:
    return replace(geometry, weights_bytes=weights_bytes, weights_known=known)


def _estimated_weights_bytes(
    text: Mapping[str, Any], geometry: ModelGeometry, quantization: Mapping[str, Any]
) -> float:
    """Parameters by group times the bytes of each: embeddings stay in 2 bytes, in INT4 checkpoints attention too."""
    embeddings = geometry.vocab_size * geometry.hidden_size * (1 if text.get("tie_word_embeddings") else 2)
    attention = geometry.layers * _attention_parameters(text, geometry)
    feed_forward = _feed_forward_parameters(text, geometry)
    weight_bytes = _bytes_per_weight(quantization)
    attention_bytes = weight_bytes if weight_bytes >= 1 else 2.0
    return 2.0 * embeddings + attention_bytes * attention + weight_bytes * feed_forward


def _attention_parameters(text: Mapping[str, Any], geometry: ModelGeometry) -> float:
    hidden, heads = geometry.hidden_size, geometry.attention_heads
    if geometry.kv_lora_rank is None:
        return hidden * geometry.head_dim * (2 * heads + 2 * geometry.kv_heads)
    q_rank = int(text.get("q_lora_rank") or hidden)
    nope, value = int(text.get("qk_nope_head_dim") or 128), int(text.get("v_head_dim") or 128)
    query = hidden * q_rank + q_rank * heads * (nope + geometry.qk_rope_head_dim)
    latent = hidden * (geometry.kv_lora_rank + geometry.qk_rope_head_dim)
    return query + latent + geometry.kv_lora_rank * heads * (nope + value) + heads * value * hidden


def _feed_forward_parameters(text: Mapping[str, Any], geometry: ModelGeometry) -> float:
    dense = 3.0 * geometry.hidden_size * geometry.intermediate_size
    if not geometry.experts:
        return geometry.layers * dense
    expert = 3.0 * geometry.hidden_size * int(text.get("moe_intermediate_size") or geometry.intermediate_size)
    dense_layers = int(text.get("first_k_dense_replace") or 0)
    per_layer = expert * (geometry.experts + int(text.get("n_shared_experts") or 0))
    return dense_layers * dense + (geometry.layers - dense_layers) * per_layer


def _bytes_per_weight(quantization: Mapping[str, Any]) -> float:
    """Bytes of one quantised weight with its share of group scales; 2 when the checkpoint is not quantised."""
    if not quantization:
        return 2.0
    groups = quantization.get("config_groups") or {}
    weights = next((group.get("weights") or {} for group in groups.values()), quantization)
    bits = weights.get("num_bits") or weights.get("bits") or (8 if "fp8" in str(quantization).lower() else 4)
    group_size = int(weights.get("group_size") or 0)
    return float(bits) / 8 + (2 / group_size if group_size > 0 else 0.0)
