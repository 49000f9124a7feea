"""What is run: a workload and a space each, what a method may know, and of presets what is hidden, drawn per seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.simulated.presets import Preset, load_preset
from tuner.memory import HostMemory, MemoryPrior, ModelGeometry
from tuner.space import Space

HIDDEN_RANGES = (
    "B ±1.5%, W ±2%, graphs x 0.7-1.5, transient x 0.7-1.5, speed x 0.8-1.25, start noise 1-2.5%, level noise 1.5%"
)
BUDGET_S = 7200.0
LEVEL_NOISE = 0.015
"""Standard deviation of one level's rate: what a level reports when its interval is ± 3%."""


@dataclass(frozen=True, slots=True)
class Case:
    """One box and model with one workload and one space: all that a method may know of it."""

    name: str
    """Box and model / kind of workload / allowed dtypes."""
    workload: str
    space: Space
    reused_prefix_share: float
    prior: MemoryPrior
    """What a model's config.json, its index and the driver say before any start."""


@dataclass(frozen=True, slots=True)
class SimulatedCase(Case):
    """A case on the simulated engine. The preset is the referee's: no method reads it."""

    preset: Preset

    @property
    def slow_start(self) -> bool:
        """Its weights take minutes to read, so that probes can pay."""
        return self.preset.start_up.weights_s - self.preset.start_up.dummy_weights_s >= 120


@dataclass(frozen=True, slots=True)
class Hidden:
    """One seed's truth. `overrides` go into the preset; `speed` divides every rate of the table."""

    overrides: Mapping[str, float]
    speed: float
    start_noise: float
    errors: Mapping[str, float] = field(default_factory=dict)
    """Deliberate departures from the physics: `overhead_gib`, `bend`, `fp8_tokens`."""


BOTH = ("bfloat16", "fp8_e4m3")


def default_cases() -> tuple[SimulatedCase, ...]:
    """Six pairs: pools that bind hard and one that hardly binds, with and without FP8, and shared prefixes."""
    kimi, deepseek = load_preset("kimi-k2.5-8x-rtx-pro-6000"), load_preset("deepseek-v3-8x-h200")
    qwen, llama = load_preset("qwen2.5-32b-1x-h200"), load_preset("llama-70b-8x-h100")
    return (
        _case(kimi, "random:in=1600,out=2400,cv=0.4", BOTH, (0, 20, 48), (16, 256), 0.0),
        _case(kimi, "random:in=1600,out=2400,cv=0.4", ("bfloat16",), (0, 20, 48), (16, 256), 0.0),
        _case(deepseek, "random:in=6000,out=2000,cv=0.4", BOTH, (0, 40), (16, 512), 0.0),
        _case(qwen, "random:in=1200,out=800,cv=0.5", BOTH, (0, 40), (16, 512), 0.0),
        _case(qwen, "shared-prefix:groups=96,prefix=3000,in=400,out=300,cv=0.3", BOTH, (0, 40), (16, 384), 0.8),
        _case(llama, "random:in=9000,out=600,cv=0.5", BOTH, (0, 40), (16, 512), 0.0),
    )


def cases_of(presets: Sequence[str]) -> tuple[SimulatedCase, ...]:
    """A case for each preset by name or path: the workload is scaled to what its pool holds."""
    return tuple(_scaled(load_preset(preset)) for preset in presets)


def _scaled(preset: Preset) -> SimulatedCase:
    """Requests so long that about a hundred of them fill the pool at 0.85 in bfloat16."""
    model = preset.model
    per_token = model.layers * _pool_elements(preset) * 2
    pool_tokens = (0.85 * preset.box.free_before_weights_gib - model.weights_gib) * 2**30 / per_token
    each = min(8000, model.context_len / 3, max(600, pool_tokens / 100))
    prompt, output = int(0.5 * each), int(each)
    workload = f"random:in={prompt},out={output},cv=0.4"
    return _case(preset, workload, BOTH, (0, 20, 48), (16, 384), 0.0)


def _pool_elements(preset: Preset) -> int:
    model = preset.model
    if model.attention == "mla":
        return (model.kv_lora_rank or 0) + (model.qk_rope_head_dim or 0)
    return max(1, (model.kv_heads or 1) // model.tp_size) * (model.head_dim or 1) * 2


def _case(
    preset: Preset,
    workload: str,
    dtypes: tuple[str, ...],
    hicache_gb: tuple[int, ...],
    concurrency: tuple[int, int],
    reused: float,
) -> SimulatedCase:
    low = preset.model.weights_gib / preset.box.free_before_weights_gib + 0.02
    space = Space((round(max(0.5, low), 2), 0.98), dtypes, hicache_gb, concurrency)
    kind = workload.partition(":")[0]
    allowed = "+".join("fp8" if "fp8" in dtype else "bf16" for dtype in dtypes)
    return SimulatedCase(f"{preset.name} / {kind} / {allowed}", workload, space, reused, prior_of(preset), preset)


def prior_of(preset: Preset) -> MemoryPrior:
    """What a model's config.json, its index and the driver would say. Hidden: B, W, overhead, transient, speed.

    The MLP's width is left out: a preset does not name it, and without it the transient starts as a guess.
    """
    model = preset.model
    geometry = ModelGeometry(
        model_type=model.model_type,
        layers=model.layers,
        hidden_size=0,
        intermediate_size=0,
        vocab_size=model.vocab_size,
        attention_heads=1,
        kv_heads=model.kv_heads or 1,
        head_dim=model.head_dim or 1,
        kv_lora_rank=model.kv_lora_rank,
        qk_rope_head_dim=model.qk_rope_head_dim or 0,
        experts=int(any(word in model.model_type for word in ("deepseek", "kimi", "moe"))),
        weights_bytes=model.weights_gib * model.tp_size * 2**30,
        weights_known=True,
    )
    host = HostMemory(int(preset.box.host_available_gb * 1e9), model.tp_size, preset.sglang_version)
    return MemoryPrior(geometry, preset.box.gpu_memory_gib, model.tp_size, host=host)


def hidden_of(case: SimulatedCase, seed: int, errors: Mapping[str, float] | None = None) -> Hidden:
    """The truth of one seed, within HIDDEN_RANGES of the preset."""
    draw = random.Random(f"{case.name}:{seed}")
    preset = case.preset
    worst = draw.uniform(0.7, 1.5)
    overrides = {
        "box.free_before_weights_gib": preset.box.free_before_weights_gib * draw.uniform(0.985, 1.015),
        "model.weights_gib": preset.model.weights_gib * draw.uniform(0.98, 1.02),
        "overhead.decode_graphs_gib": preset.overhead.decode_graphs_gib * draw.uniform(0.7, 1.5),
        "transient.before_bytes_per_token": preset.transient.before_bytes_per_token * worst,
        "transient.largest_bytes_per_token": preset.transient.largest_bytes_per_token * worst,
        "transient.after_bytes_per_token": preset.transient.after_bytes_per_token * worst,
    }
    return Hidden(overrides, draw.uniform(0.8, 1.25), draw.uniform(0.01, 0.025), errors or {})
