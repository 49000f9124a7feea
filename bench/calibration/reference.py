"""What real servers showed: one field report and ten starts of SGLang 0.5.17 on one H200.

Field report: Kimi-K2.5, INT4 weights, on eight RTX PRO 6000, 150 clients, prompt + output about 4 K
tokens. It gives no length distribution: prompts of about 300 and outputs of about 3,900 tokens are the
pair whose equilibrium and whose common-start wave both come near its states. Its responses/s are counts in
about three minutes (84 and 111).
H200: the lengths are those of the log ("#new-token", and the gen rate by the responses a second).
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.config import FlagValue

KIMI = "kimi-k2.5-8x-rtx-pro-6000"
QWEN = "qwen2.5-32b-1x-h200"
DSV2 = "dsv2-lite-1x-h200"
NO_PREFILL_GRAPHS: dict[str, FlagValue] = {"disable-piecewise-cuda-graph": True}


@dataclass(frozen=True, slots=True)
class Start:
    """One start and how it went. None: not reported, or not reached."""

    name: str
    preset: str
    mem_fraction: float
    dtype: str
    flags: dict[str, FlagValue]
    hicache_gb: int = 0
    capacity_tokens: int | None = None
    capacity_tolerance_share: float = 0.001
    headroom_gib: float | None = None
    dies: str = "no"
    """no, at start, or under load."""
    message: str = ""
    """What its log says."""


_TP8: dict[str, FlagValue] = {"tp-size": 8}
_OOM = "CUDA out of memory"
_OOM_16K = "Tried to allocate 1.69 GiB"
_TOO_LOW = "minimum viable = 1 - available/pre = 0.4391"
_CUBLAS = "CUBLAS_STATUS_ALLOC_FAILED"
_HOST = "Not enough host memory available. Requesting 200.00 GB"
_CAP_100K: dict[str, FlagValue] = {"max-total-tokens": 100_000}
_CHUNK_16K: dict[str, FlagValue] = {**NO_PREFILL_GRAPHS, "chunked-prefill-size": 16384}

STARTS = (
    Start("field 0.85", KIMI, 0.85, "bfloat16", _TP8, 0, 116_072, 0.005),
    Start("field 0.88", KIMI, 0.88, "bfloat16", _TP8, 48, 159_277, 0.005, 5.5),
    Start("field 0.93", KIMI, 0.93, "bfloat16", _TP8, 0, 231_066, 0.005, 0.82, "under load", _OOM),
    Start("field 0.90 fp8", KIMI, 0.90, "fp8_e4m3", _TP8, 48, 375_887, 0.005),
    Start("h200 0.40", QWEN, 0.40, "bfloat16", NO_PREFILL_GRAPHS, dies="at start", message=_TOO_LOW),
    Start("h200 0.85", QWEN, 0.85, "bfloat16", {}, 0, 234_288, headroom_gib=17.46),
    Start("h200 0.85 fp8", QWEN, 0.85, "fp8_e4m3", NO_PREFILL_GRAPHS, 0, 468_577, headroom_gib=19.68),
    Start("h200 0.97", QWEN, 0.97, "bfloat16", NO_PREFILL_GRAPHS, 0, 302_705, headroom_gib=2.95),
    Start("h200 0.98", QWEN, 0.98, "bfloat16", _CHUNK_16K, 0, 308_406, 0.001, 1.45, "under load", _OOM_16K),
    Start("h200 0.985", QWEN, 0.985, "bfloat16", _CHUNK_16K, 0, 311_257, 0.001, 0.95, "under load", _OOM_16K),
    Start("h200 0.995", QWEN, 0.995, "bfloat16", NO_PREFILL_GRAPHS, dies="at start", message=_CUBLAS),
    Start("h200 mla hicache 200", DSV2, 0.85, "bfloat16", {}, 200, dies="at start", message=_HOST),
    Start("h200 mla hicache 90", DSV2, 0.85, "bfloat16", {}, 90, 3_065_836, headroom_gib=17.65),
    Start("h200 mla hicache 20", DSV2, 0.85, "bfloat16", _CAP_100K, 20, 100_000, headroom_gib=104.02),
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A client's requests: uniform or normal lengths, and prefixes that groups of prompts share."""

    prompt_mean: float
    prompt_half_width: float
    output_mean: float
    output_half_width: float
    shared_prefixes: int = 0
    shared_prefix_tokens: int = 0


FIELD_LENGTHS = Lengths(300, 150, 3900, 400)


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """A closed-loop run on the H200, and the mean gen throughput of its "Decode batch" lines."""

    name: str
    preset: str
    mem_fraction: float
    dtype: str
    concurrency: int
    lengths: Lengths
    flags: dict[str, FlagValue]
    hicache_gb: int = 0
    first_wave_tokens_per_s: float | None = None
    """Lines without a prefill in between."""
    mixed_tokens_per_s: float | None = None
    """Lines of the steady state, prefills in between."""


_SHORT = Lengths(1000, 500, 428, 190)
_LONG = Lengths(2066, 1040, 310, 100)
_PREFIXED = Lengths(64, 0, 134, 70, shared_prefixes=24, shared_prefix_tokens=6000)

DECODE_RUNS = (
    DecodeRun("h200 0.85, 32 clients", QWEN, 0.85, "bfloat16", 32, _SHORT, {}, 0, 1_450, 1_060),
    DecodeRun("h200 0.97, 160 clients", QWEN, 0.97, "bfloat16", 160, _LONG, NO_PREFILL_GRAPHS, 0, 2_882, 1_063),
    DecodeRun("h200 fp8, 64 clients", QWEN, 0.85, "fp8_e4m3", 64, _LONG, NO_PREFILL_GRAPHS, 0, 1_970, 843),
    DecodeRun("h200 fp8, 160 clients", QWEN, 0.85, "fp8_e4m3", 160, _LONG, NO_PREFILL_GRAPHS, 0, 3_151, 1_141),
    DecodeRun("h200 mla, 24 prefixes", DSV2, 0.85, "bfloat16", 64, _PREFIXED, _CAP_100K, 20, None, 977),
)


@dataclass(frozen=True, slots=True)
class StateRange:
    """One state of the field report; each figure as the range that was reported."""

    name: str
    running: tuple[float, float]
    queued: tuple[float, float]
    usage: tuple[float, float]
    gen_tokens_per_s: tuple[float, float]


CLIENTS = 150
STATE_A = StateRange("A: 0.88 bf16, the wave grown old", (35, 35), (115, 115), (0.92, 0.94), (600, 600))
STATE_B = StateRange("B: 0.88 bf16, mixed ages", (72, 72), (79, 79), (0.96, 0.96), (930, 930))
STATE_C = StateRange("C: 0.90 fp8, usage 0.61 to 0.93", (134, 150), (10, 115), (0.61, 0.93), (1300, 1450))
RESPONSES_BF16, RESPONSES_FP8 = 84, 111
"""Counted in about three minutes each."""
