"""What is believed of memory before any start: the model's shape, the GPUs' size, and what runs elsewhere showed."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.memory.belief import Belief, GridBelief
from tuner.memory.default_fraction import default_chunk_tokens, default_graph_batch, default_mem_fraction
from tuner.memory.geometry import GIB, ModelGeometry
from tuner.memory.host import HostMemory

CONTEXT_GIB = Belief(1.5, 0.5)
"""CUDA context and NCCL buffers per rank: 1.27 GiB on an H200 alone, 1.5 GiB on 8 x RTX PRO 6000."""
OVERHEAD_GIB = Belief(3.2, 2.0)
"""Graphs and workspaces: 1.1-1.3 GiB (H200, decode graphs), 3.4 with prefill graphs, 5.76 (Kimi-K2.5, TP 8)."""
MANY_EXPERTS = 128
DP_EXPERTS_OVERHEAD_GIB = Belief(9.0, 6.0)
"""Many experts with DP attention: 17.4 GiB for DeepSeek-V3's shape in bfloat16, the graphs nearly all of it (TP 2)."""
WORKSPACE_GIB = 0.5
TRANSIENT_LOG_SD = 0.55
WEIGHTS_SHARE_SD = {True: 0.03, False: 0.12}
"""Relative doubt of the weights per rank: known from the index (3%: what is replicated or repacked), or estimated."""
WEIGHTS_GROWTH = 1.03
"""Kimi-K2.5: 554 GiB / 8 = 69.3 became 72.4; an unquantised 32B model kept its size."""


@dataclass(frozen=True, slots=True)
class MemoryPrior:
    """All that the search is told of memory. Everything may be missing: one start then teaches it."""

    geometry: ModelGeometry | None = None
    gpu_total_gib: float | None = None
    """Of the smallest GPU."""
    tp_size: int = 1
    dp_size: int = 1
    """Data-parallel ranks: each has a pool of its own, and each client is served by one."""
    dp_attention: bool = False
    """They share the tensor-parallel GPUs, so that attention is split over tp / dp of them only."""
    chunk_tokens: int | None = None
    """Pinned --chunked-prefill-size; None is SGLang's default for the GPU."""
    host: HostMemory | None = None
    graph_batch: int | None = None
    """Pinned --cuda-graph-max-bs(-decode); None is SGLang's default."""
    captures_graphs: bool = True
    """False on a CPU, and where a flag turns decode graphs off."""
    max_total_tokens: int | None = None
    """Pinned --max-total-tokens, which caps the pool of every setting that does not search it."""
    shortest_pool_tokens: float = 1.0
    """Tokens that the longest request of the workload needs: a pool below that cannot serve it."""

    @property
    def chunk(self) -> int:
        return self.chunk_tokens or default_chunk_tokens(self.gpu_total_gib or 80.0)

    @property
    def largest_graph_batch(self) -> int:
        """Running requests above this decode without a graph, which is slower."""
        return self.graph_batch or default_graph_batch(self.gpu_total_gib or 80.0, self.tp_size)

    @property
    def attention_tp_size(self) -> int:
        """GPUs over which the KV heads of one token are split."""
        return max(1, self.tp_size // self.dp_size) if self.dp_attention else self.tp_size

    def default_fraction(self) -> float:
        """SGLang's own choice; 0.85 where the GPU's size is not known (it takes 0.88 then, which is not the safe
        side)."""
        if self.gpu_total_gib is None:
            return 0.85
        is_mla = self.geometry is not None and self.geometry.is_mla
        return default_mem_fraction(
            self.gpu_total_gib, tp_size=self.tp_size, is_mla=is_mla, chunk_tokens=self.chunk_tokens
        )

    def before_gib(self) -> Belief:
        """B."""
        if self.gpu_total_gib is None:
            return Belief(78.0, 30.0)
        return Belief(self.gpu_total_gib - CONTEXT_GIB.mean, CONTEXT_GIB.sd)

    def weights_gib(self) -> Belief:
        """W per rank."""
        if self.geometry is None or self.geometry.weights_bytes <= 0:
            return Belief(0.5 * self.before_gib().mean, 0.25 * self.before_gib().mean)
        mean = WEIGHTS_GROWTH * self.geometry.weights_bytes / self.tp_size / GIB
        return Belief(mean, WEIGHTS_SHARE_SD[self.geometry.weights_known] * mean)

    def overhead_gib(self) -> Belief:
        """Graphs and workspaces per rank."""
        experts = self.geometry.experts if self.geometry is not None else 0
        return DP_EXPERTS_OVERHEAD_GIB if self.dp_attention and experts >= MANY_EXPERTS else OVERHEAD_GIB

    def bytes_per_token(self, kv_cache_dtype: str) -> float | None:
        """b by the formula; None without a config.json."""
        return self.geometry.bytes_per_token(kv_cache_dtype, self.attention_tp_size) if self.geometry else None

    def transient_gib(self) -> GridBelief:
        """The worst step's need on top of the overhead, for this chunk."""
        median = WORKSPACE_GIB
        if self.geometry is not None:
            median += self.geometry.prefill_transient_gib(self.chunk, self.tp_size)
        return GridBelief.lognormal(max(median, 0.8), TRANSIENT_LOG_SD)
