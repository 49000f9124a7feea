"""What may be searched: the outer launch flags, the quality allowlist, and the client concurrency.

Everything that is not in the space stays pinned. The allowlist is the user's word on quality: a dtype is tried only
if it is named here, whatever it would gain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.config import FlagValue
from tuner.errors import StudyFileError
from tuner.trial import Setting

FRACTION_STEP = 0.005
"""Finer than any rate can tell apart; SGLang itself rounds its default to 0.001."""

ELEMENT_BYTES: Mapping[str, float] = {
    "bfloat16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "mxfp8": 33 / 32,
    "nvfp4": 9 / 16,
    "fp4_mx_block16": 9 / 16,
    "fp4_e2m1": 9 / 16,
}
"""Bytes of one KV element with its share of block scales (one scale byte per 32 for mxfp8, per 16 for FP4)."""

MOST_CLIENTS = 16_384
"""SGLang runs 4,096 requests at most unless told otherwise; millions of clients would eat the host's memory."""
BLACKWELL_ONLY = frozenset({"mxfp8", "nvfp4"})
MLA_BACKENDS_WITHOUT_E5M2 = frozenset({"trtllm_mla", "cutedsl_mla"})


@dataclass(frozen=True, slots=True)
class Space:
    """The product of the searched flags, and the range of client concurrency. Bounds are inclusive.

    Raises StudyFileError when a range is empty, a dtype is unknown or `auto`, or a size is negative.
    """

    mem_fraction: tuple[float, float] | float = (0.70, 0.95)
    kv_cache_dtypes: tuple[str, ...] = ("bfloat16",)
    hicache_sizes_gb: tuple[int, ...] = (0,)
    concurrency: tuple[int, int] = (8, 256)
    further: Mapping[str, tuple[FlagValue, ...]] = field(default_factory=dict)
    """Further SGLang flags by dashed name, each with the values to try; the first is where the search starts."""

    def __post_init__(self) -> None:
        low, high = self.fraction_bounds
        if not 0 < low <= high < 1:
            raise _range_error("mem-fraction-static", low, high, "two numbers between 0 and 1")
        fewest, most = self.concurrency
        if not 1 <= fewest <= most <= MOST_CLIENTS:
            raise _range_error("concurrency", fewest, most, f"two whole numbers from 1 to {MOST_CLIENTS}")
        _check_dtypes(self.kv_cache_dtypes)
        _check_further(self.hicache_sizes_gb, self.further)

    @property
    def fraction_bounds(self) -> tuple[float, float]:
        if isinstance(self.mem_fraction, tuple):
            return self.mem_fraction
        return (self.mem_fraction, self.mem_fraction)

    def fractions(self, step: float = FRACTION_STEP) -> tuple[float, ...]:
        """The fractions that may be proposed, both bounds among them, ascending."""
        low, high = self.fraction_bounds
        inner = (round(low + step * i, 3) for i in range(1, int((high - low) / step) + 1))
        return tuple(sorted({low, high, *(fraction for fraction in inner if low < fraction < high)}))

    def families(self) -> Iterator[Setting]:
        """Every combination of the searched flags except the fraction, which is set to the lower bound."""
        names = tuple(self.further)
        combinations = tuple(itertools.product(*self.further.values()))
        for dtype, hicache_gb in itertools.product(self.kv_cache_dtypes, self.hicache_sizes_gb):
            for values in combinations:
                flags = dict(zip(names, values, strict=True))
                yield Setting(self.fraction_bounds[0], dtype, hicache_gb, flags)

    def settings(self, step: float = FRACTION_STEP) -> Iterator[Setting]:
        """Every setting of the space on a grid of fractions."""
        for family in self.families():
            for fraction in self.fractions(step):
                yield Setting(fraction, family.kv_cache_dtype, family.hicache_size_gb, family.flags)

    def concurrency_ladder(self, rungs_per_doubling: int = 2) -> tuple[int, ...]:
        """Concurrency levels from the lower bound to the upper, evenly spaced in ratio, ascending."""
        low, high = self.concurrency
        rungs = {low, high}
        value = float(low)
        while value < high:
            rungs.add(_rounded(value, low, high))
            value *= 2 ** (1 / rungs_per_doubling)
        return tuple(sorted(rungs))

    def nearest(self, setting: Setting) -> Setting:
        """`setting` moved into the space: each value that is not allowed becomes the nearest or first allowed one."""
        low, high = self.fraction_bounds
        fraction = low if setting.mem_fraction_static is None else setting.mem_fraction_static
        dtype = setting.kv_cache_dtype
        asked_gb = setting.hicache_size_gb
        return Setting(
            mem_fraction_static=min(high, max(low, fraction)),
            kv_cache_dtype=dtype if dtype in self.kv_cache_dtypes else self.kv_cache_dtypes[0],
            hicache_size_gb=min(self.hicache_sizes_gb, key=lambda size_gb: (abs(size_gb - asked_gb), size_gb)),
            flags={name: _allowed(setting.flags.get(name), values) for name, values in self.further.items()},
        )


def overrides(setting: Setting, space: Space) -> int:
    """How many searched knobs differ from the plainest choice (bfloat16, no HiCache, first value of each flag)."""
    plain = [setting.kv_cache_dtype == "bfloat16", setting.hicache_size_gb == 0]
    plain += [setting.flags.get(name) == values[0] for name, values in space.further.items()]
    return plain.count(False)


def refuse_impossible(
    space: Space, *, blackwell: bool | None, attention_backend: str | None, sglang_version: str | None
) -> None:
    """Raise StudyFileError for a dtype that this GPU, attention backend or build cannot serve; None is not known.

    Facts: mxfp8 and nvfp4 need Blackwell (RuntimeError or ValueError at start otherwise); the TensorRT-LLM MLA
    backends take only bfloat16 and fp8_e4m3; fp8_e5m2 makes SGLang leave fa3 for triton in silence, which would
    compare two kernels and not two dtypes; fp4_e2m1 is gone since 0.5.21.
    """
    for dtype in space.kv_cache_dtypes:
        if dtype in BLACKWELL_ONLY and blackwell is False:
            raise _refused(dtype, "needs a Blackwell GPU")
        if dtype == "fp8_e5m2" and attention_backend in MLA_BACKENDS_WITHOUT_E5M2:
            raise _refused(dtype, f"is not served by the attention backend {attention_backend}; use fp8_e4m3")
        if dtype == "fp8_e5m2" and attention_backend == "fa3":
            raise _refused(dtype, "makes SGLang replace fa3 by triton in silence; use fp8_e4m3 or another backend")
        if dtype == "fp4_e2m1" and sglang_version is not None and version_key(sglang_version) >= (0, 5, 21):
            raise _refused(dtype, f"was removed from SGLang 0.5.21 (this is {sglang_version}); use nvfp4")


def version_key(version: str) -> tuple[int, ...]:
    """`0.5.17` as (0, 5, 17), so that versions compare; what is not a number ends it."""
    numbers = itertools.takewhile(str.isdigit, version.split("+")[0].split("."))
    return tuple(int(number) for number in numbers)


def _range_error(key: str, low: float, high: float, wanted: str) -> StudyFileError:
    return StudyFileError(f"space: {key}: [{low}, {high}] must be {wanted}, the lower first")


def _refused(dtype: str, why: str) -> StudyFileError:
    return StudyFileError(f"space: kv-cache-dtype: {dtype} {why}")


def _check_dtypes(dtypes: tuple[str, ...]) -> None:
    if not dtypes:
        raise StudyFileError("space: kv-cache-dtype: the allowlist is empty; name at least bfloat16")
    for dtype in dtypes:
        if dtype == "auto":
            raise _refused(dtype, "may silently be FP8 (checkpoint or model rules); name the dtype itself")
        if dtype not in ELEMENT_BYTES:
            raise _refused(dtype, f"is not known; known are {', '.join(ELEMENT_BYTES)}")


def _check_further(hicache_sizes_gb: tuple[int, ...], further: Mapping[str, tuple[FlagValue, ...]]) -> None:
    if not hicache_sizes_gb or min(hicache_sizes_gb) < 0:
        raise StudyFileError("space: hicache-size: must be off (0) or whole GB per rank, at least one value")
    for name, values in further.items():
        if not values:
            raise StudyFileError(f"space: {name}: names no value to try")


def _allowed(value: FlagValue | None, values: tuple[FlagValue, ...]) -> FlagValue:
    return value if value is not None and value in values else values[0]


def _rounded(value: float, low: int, high: int) -> int:
    """A number a person would pick: a multiple of 4 from 32 up, of 8 from 128 up."""
    step = 1 if value < 32 else 4 if value < 128 else 8
    return min(high, max(low, round(value / step) * step))
