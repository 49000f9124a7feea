"""The keys of a preset, with their units. Unknown keys are refused; GiB = 2^30 bytes, GB = 10^9 bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Box(_Section):
    """The machine."""

    gpu_name: str
    gpu_count: int = Field(ge=1)
    gpu_memory_gib: float = Field(gt=0)
    """What the driver calls total."""
    free_before_weights_gib: float = Field(gt=0)
    """B: free on the poorest rank after NCCL start, before the weights."""
    lost_before_weights_gib: float = Field(default=0.0, ge=0)
    """Taken between that moment and the log line "Load weight begin"."""
    host_available_gb: float = Field(gt=0)
    """Host memory that is available before the start, decimal GB."""
    idle_memory_mib: float = Field(default=4.0, ge=0)
    """What the driver shows as used on an empty GPU."""
    power_idle_w: float = Field(default=80.0, ge=0)
    power_busy_w: float = Field(gt=0)
    power_limit_w: float = Field(gt=0)
    temperature_idle_c: float = 34.0
    temperature_busy_c: float = 68.0


class Model(_Section):
    """The model, as the arithmetic needs it."""

    architecture: str
    """As in config.json: `Qwen2ForCausalLM`."""
    model_type: str
    attention: Literal["mha", "mla"]
    layers: int = Field(ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    kv_lora_rank: int | None = Field(default=None, ge=1)
    qk_rope_head_dim: int | None = Field(default=None, ge=0)
    vocab_size: int = Field(ge=1)
    context_len: int = Field(ge=16)
    tp_size: int = Field(ge=1)
    """The size that `weights_gib` and the pace belong to; another one scales them by the ratio."""
    weights_gib: float = Field(gt=0)
    """W: weights per rank at `tp_size`, as "Load weight end" gives them (`mem usage`)."""

    @model_validator(mode="after")
    def _shape_is_whole(self) -> Model:
        needed = ("kv_heads", "head_dim") if self.attention == "mha" else ("kv_lora_rank", "qk_rope_head_dim")
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"attention: {self.attention} also needs {', '.join(missing)}")
        return self


class Overhead(_Section):
    """GPU memory beside weights and KV pool, per rank."""

    decode_graphs_gib: float = Field(ge=0)
    """Captured decode graphs and attention workspaces with graphs up to `graph_max_batch`."""
    prefill_graphs_gib: float = Field(default=0.0, ge=0)
    """Captured prefill graphs, unless a flag turns them off."""
    cublas_gib: float = Field(default=0.1, ge=0)
    """Needed before the capture; less than that is CUBLAS_STATUS_ALLOC_FAILED."""
    graph_max_batch: int = Field(ge=1)
    """The largest decode batch with a graph by default (--cuda-graph-max-bs, --cuda-graph-max-bs-decode)."""


class Transient(_Section):
    """What the worst step needs on top of everything else, per rank."""

    before_bytes_per_token: float = Field(ge=0)
    """Already allocated in a prefill step when its largest tensor is asked for."""
    largest_bytes_per_token: float = Field(ge=0)
    """The largest tensor of a prefill step: 2 * intermediate / tp * 2 bytes for a dense MLP."""
    after_bytes_per_token: float = Field(ge=0)
    """What follows on top of the largest tensor, so that the sum is the peak.

    Blocks that torch's allocator keeps beside it are counted as needed: no run has told the two apart.
    """
    logits_bytes_per_request: float = Field(ge=0)
    """Logits of one request in a batch."""
    eager_bytes_per_request: float = Field(ge=0)
    """Activations of one request in a decode step without a graph."""


class Pace(_Section):
    """Seconds of one step: decode = base + per_request * running + per_context_token * their lengths."""

    decode_base_s: float = Field(gt=0)
    decode_per_request_s: float = Field(ge=0)
    decode_per_context_token_s: float = Field(ge=0)
    """At bfloat16."""
    decode_per_context_token_fp8_s: float = Field(ge=0)
    eager_factor: float = Field(default=1.6, ge=1)
    """How much longer a decode step takes without a graph."""
    prefill_base_s: float = Field(ge=0)
    """Fixed cost of one prefill batch."""
    prefill_per_token_s: float = Field(gt=0)
    prefill_per_context_token_s: float = Field(ge=0)
    """Per token of cached context that a prefill batch goes over (MLA projects it up again)."""


class StartUp(_Section):
    """Seconds of each stage of a start, and of a stop."""

    import_s: float = Field(ge=0)
    distributed_s: float = Field(ge=0)
    weights_s: float = Field(ge=0)
    """Reading and moving the weights; --load-format dummy takes `dummy_weights_s` instead."""
    dummy_weights_s: float = Field(ge=0)
    decode_graphs_s: float = Field(ge=0)
    prefill_graphs_s: float = Field(default=0.0, ge=0)
    warm_up_s: float = Field(ge=0)
    pin_s_per_gb: float = Field(ge=0)
    """HiCache pinning, seconds per decimal GB of one rank."""
    stop_s: float = Field(ge=0)
    """SIGTERM of an idle server until the launcher has exited."""
    crash_diagnostics_s: float = Field(default=5.0, ge=0)
    """Between the exception under load and the end of the launcher."""
    memory_back_s: float = Field(ge=0)
    """Between the end of the launcher and the memory's return in the driver."""


class Hicache(_Section):
    """The host tier."""

    pcie_bytes_per_s: float = Field(gt=0)
    """Per rank, one direction."""
    interference_share: float = Field(ge=0, le=1)
    """Share of a device-to-host copy's time that delays the compute stream."""


class Noise(_Section):
    """How far one run differs from another. Zero makes a run exactly its physics."""

    start_sd_share: float = Field(default=0.0, ge=0)
    """Of the speed of a whole server life."""
    drift_sd_share: float = Field(default=0.0, ge=0)
    """Of a slow wander of the speed within a life (five-minute steps)."""
    start_time_sd_share: float = Field(default=0.0, ge=0)
    """Of stage times."""
    transient_sd_share: float = Field(default=0.0, ge=0)
    """Of the worst step's memory, per start (fragmentation)."""


class Answers(_Section):
    """How long answers are when the client leaves the end to the model (no ignore_eos): log-normal."""

    mean_tokens: float = Field(default=600.0, gt=0)
    sd_share: float = Field(default=0.5, ge=0)


class Preset(_Section):
    """One simulated box with one model on it."""

    name: str
    about: str
    derived: bool
    """True: nobody measured this; the numbers were computed from others."""
    sglang_version: str = "0.5.17"
    """Whose wording and rules it follows when the command line does not say."""
    box: Box
    model: Model
    overhead: Overhead
    transient: Transient
    pace: Pace
    start_up: StartUp
    hicache: Hicache
    noise: Noise = Noise()
    answers: Answers = Answers()
    faults: tuple[str, ...] = ()
    """Faults that are always on, as on the command line (`--fault`)."""
    sources: dict[str, str]
    """Where each number is from, by `section.key` or `section`."""

    @model_validator(mode="after")
    def _every_section_has_a_source(self) -> Preset:
        named = {key.split(".")[0] for key in self.sources}
        missing = {"box", "model", "overhead", "transient", "pace", "start_up", "hicache"} - named
        if missing:
            raise ValueError(f"sources: nothing is said of {', '.join(sorted(missing))}")
        return self
