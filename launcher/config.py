"""A server configuration, as kvtune thinks of it: the searched knobs typed, everything else as SGLang flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FlagValue = str | int | float | bool | list[str] | list[int] | dict[str, object]

_TP = ("tp-size", "tensor-parallel-size", "tp")
_DP = ("attn-dp-size", "dp-size", "data-parallel-size", "dp")
_PP = ("pp-size", "pipeline-parallel-size", "pp")
_NODES = ("nnodes",)
_NO_DECODE_GRAPHS = ("disable-cuda-graph", "disable-decode-cuda-graph")
_NO_PREFILL_GRAPHS = ("disable-cuda-graph", "disable-prefill-cuda-graph", "disable-piecewise-cuda-graph")
TENSOR_PARALLEL = frozenset(_TP)
SIZE_FLAGS = (_TP, _DP, _PP, _NODES)
"""Flags that say how many GPUs a server takes, each with its aliases: whole numbers from 1 up."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What one start of SGLang is asked to be. It says nothing of the port: a port belongs to a launch.

    `flags` holds every further SGLang flag by its name with dashes and without the leading `--`
    (`{"tp-size": 8, "trust-remote-code": True}`); True is a bare switch, False leaves it out.
    """

    model_path: str
    mem_fraction_static: float | None = None
    kv_cache_dtype: str | None = None
    """Normalised: `bfloat16`, `fp8_e4m3`, `fp8_e5m2`, ...; None leaves SGLang's own default."""
    hicache_size_gb: int = 0
    """Whole decimal GB (10^9 bytes) of host memory per rank; 0 leaves HiCache off."""
    flags: Mapping[str, FlagValue] = field(default_factory=dict)

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks; SGLang's default is 1 (`--tp-size`, alias `--tensor-parallel-size`, `--tp`)."""
        return self._size(*_TP)

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks, each with a KV pool of its own."""
        return self._size(*_DP)

    @property
    def dp_attention(self) -> bool:
        """The data-parallel ranks share the tensor-parallel GPUs: attention is split into dp groups of tp / dp."""
        return bool(self.flags.get("enable-dp-attention")) or "attn-dp-size" in self.flags

    @property
    def rank_count(self) -> int:
        """GPUs, and scheduler processes, of the whole server."""
        replicas = 1 if self.dp_attention else self.dp_size
        return self.tp_size * self._size(*_PP) * replicas

    @property
    def ranks_here(self) -> int:
        """Of all ranks, those of one node."""
        return max(1, self.rank_count // self._size(*_NODES))

    @property
    def decode_graphs(self) -> bool:
        """Decode steps run as CUDA graphs, unless one of the flags that say so (0.5.6-0.5.23) turns them off."""
        return not self._any(_NO_DECODE_GRAPHS) and self.flags.get("cuda-graph-backend-decode") != "disabled"

    @property
    def prefill_graphs(self) -> bool:
        """The same of prefill chunks."""
        return not self._any(_NO_PREFILL_GRAPHS) and self.flags.get("cuda-graph-backend-prefill") != "disabled"

    def _any(self, switches: tuple[str, ...]) -> bool:
        return any(self.flags.get(switch) is True for switch in switches)

    def _size(self, *names: str) -> int:
        sizes = (self.flags.get(name) for name in names)
        return next((size for size in sizes if isinstance(size, int)), 1)
