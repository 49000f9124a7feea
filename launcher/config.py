"""A server configuration, as kvtune thinks of it: the searched knobs typed, everything else as SGLang flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FlagValue = str | int | float | bool | list[str] | list[int] | dict[str, object]


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
        for name in ("tp-size", "tensor-parallel-size", "tp"):
            value = self.flags.get(name)
            if isinstance(value, int):
                return value
        return 1
