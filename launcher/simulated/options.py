"""What the simulated engine understands of SGLang's flags, typed and with SGLang's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config import FlagValue, ServerConfig
from launcher.errors import UsageError
from launcher.simulated.presets import Preset

FP8_DTYPES = ("fp8_e4m3", "fp8_e5m2")
_CHUNK_BY_GPU_GIB = ((20, 2048), (35, 4096), (60, 4096), (90, 8192), (160, 8192))


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The flags that change what is simulated. Defaults are SGLang's (0.5.17, server_args.py)."""

    mem_fraction_static: float
    kv_cache_dtype: str
    """bfloat16, fp8_e4m3 or fp8_e5m2: the dtype in use."""
    tp_size: int
    hicache_gb: int
    """Per rank; 0 is off."""
    hicache_ratio: float
    """Used when HiCache is on and no size is given."""
    hicache_on: bool
    hicache_write_policy: str
    chunked_prefill_size: int
    """-1 turns chunking off."""
    max_prefill_tokens: int
    max_total_tokens: int | None
    max_running_requests: int | None
    max_queued_requests: int | None
    schedule_conservativeness: float
    num_continuous_decode_steps: int
    page_size: int
    graph_max_batch: int
    prefill_graphs: bool
    disable_radix_cache: bool
    dummy_weights: bool
    skip_warm_up: bool
    context_len: int
    decode_log_interval: int


def options_of(preset: Preset, config: ServerConfig) -> EngineOptions:
    """The options of one start. Raises UsageError for what SGLang's own parser or validation refuses."""
    flags = _Flags(config.flags)
    fraction = config.mem_fraction_static
    hicache_on = config.hicache_size_gb > 0 or flags.switch("enable-hierarchical-cache")
    no_radix = flags.switch("disable-radix-cache")
    if hicache_on and no_radix:
        raise UsageError("--enable-hierarchical-cache and --disable-radix-cache are mutually exclusive")
    return EngineOptions(
        mem_fraction_static=fraction if fraction is not None else _default_fraction(preset, config.tp_size),
        kv_cache_dtype=_dtype(config.kv_cache_dtype),
        tp_size=config.tp_size,
        hicache_gb=config.hicache_size_gb,
        hicache_ratio=flags.number("hicache-ratio", 2.0),
        hicache_on=hicache_on,
        hicache_write_policy=flags.text("hicache-write-policy", "write_through"),
        chunked_prefill_size=flags.whole("chunked-prefill-size", _default_chunk(preset.box.gpu_memory_gib)),
        max_prefill_tokens=flags.whole("max-prefill-tokens", 16384),
        max_total_tokens=flags.maybe_whole("max-total-tokens"),
        max_running_requests=flags.maybe_whole("max-running-requests"),
        max_queued_requests=flags.maybe_whole("max-queued-requests"),
        schedule_conservativeness=flags.number("schedule-conservativeness", 1.0),
        num_continuous_decode_steps=flags.whole("num-continuous-decode-steps", 1),
        page_size=flags.whole("page-size", 1),
        graph_max_batch=_graph_max_batch(preset, flags) if config.decode_graphs else 0,
        prefill_graphs=preset.overhead.prefill_graphs_gib > 0 and config.prefill_graphs,
        disable_radix_cache=no_radix,
        dummy_weights=flags.text("load-format", "auto") == "dummy",
        skip_warm_up=flags.switch("skip-server-warmup"),
        context_len=flags.whole("context-length", preset.model.context_len),
        decode_log_interval=flags.whole("decode-log-interval", 40),
    )


class _Flags:
    """SGLang flags by dashed name; a value of the wrong kind is refused as argparse refuses it."""

    def __init__(self, flags: Mapping[str, FlagValue]) -> None:
        self._flags = flags

    def switch(self, name: str) -> bool:
        return self._flags.get(name) is True

    def text(self, name: str, default: str) -> str:
        return str(self._flags.get(name, default))

    def number(self, name: str, default: float) -> float:
        value = self._flags.get(name, default)
        try:
            return float(str(value))
        except ValueError:
            raise UsageError(f"argument --{name}: invalid float value: {value!r}") from None

    def whole(self, name: str, default: int) -> int:
        value = self.maybe_whole(name)
        return default if value is None else value

    def maybe_whole(self, name: str) -> int | None:
        value = self._flags.get(name)
        if value is None:
            return None
        try:
            return int(str(value))
        except ValueError:
            raise UsageError(f"argument --{name}: invalid int value: {value!r}") from None


def _dtype(asked: str | None) -> str:
    """`auto` is bfloat16 for every shipped preset: none has a checkpoint that names another KV dtype."""
    if asked in (None, "auto", "bf16", "bfloat16"):
        return "bfloat16"
    if asked in FP8_DTYPES:
        return str(asked)
    raise UsageError(
        f"argument --kv-cache-dtype: {asked!r} is not simulated; auto, bfloat16, {', '.join(FP8_DTYPES)} are"
    )


def _default_chunk(gpu_gib: float) -> int:
    """--chunked-prefill-size by GPU memory (SGLang 0.5.6-0.5.23: <20/35/60/90/160 GiB, else 16384)."""
    return next((size for limit, size in _CHUNK_BY_GPU_GIB if gpu_gib < limit), 16384)


def _graph_max_batch(preset: Preset, flags: _Flags) -> int:
    older = flags.whole("cuda-graph-max-bs", preset.overhead.graph_max_batch)
    return flags.whole("cuda-graph-max-bs-decode", older)


def _default_fraction(preset: Preset, tp_size: int) -> float:
    """SGLang's own default (memory_hook.handle_gpu_memory_settings, 0.5.17-0.5.23)."""
    total_mib = preset.box.gpu_memory_gib * 1024
    attention_mib = 1536 if preset.model.attention == "mla" else 58 * 8
    reserved = 512 + max(_default_chunk(preset.box.gpu_memory_gib), 2048) * 1.5 + tp_size / 8 * 1024
    reserved += preset.overhead.graph_max_batch * 2 + attention_mib
    if preset.box.gpu_memory_gib > 60:
        reserved = max(reserved, 10 * 1024)
    return round((total_mib - reserved) / total_mib, 3)
