"""Figures that failures name: sizes in whatever unit, fractions, host pools. Units differ inside one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.failure import FailureNumbers

_GIB = {"bytes": 2**-30, "b": 2**-30, "kib": 2**-20, "mib": 2**-10, "gib": 1.0, "tib": 2.0**10}
_DECIMAL = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]i?B|B)\b"
_TRIED = (
    re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    re.compile(r"Failed to CUDA \w+alloc (\d+) (bytes)"),
    re.compile(rf"(?:failed|unable) to allocate {_SIZE}", re.I),
)
_FREE = (re.compile(rf"of which {_SIZE} is free"), re.compile(rf"; {_SIZE} free;"))
_TOTAL = (re.compile(rf"total capacity of {_SIZE}"), re.compile(rf"; {_SIZE} total capacity;"))
_GPU = (
    re.compile(r"\bGPU (\d+) has a total"),
    re.compile(r"\(GPU (\d+);"),
    re.compile(r"^\S+:\d+:\d+ \[(\d+)\]", re.M),
)
_MINIMUM = re.compile(r"minimum viable[^=]*=[^=]*= ?(\d+(?:\.\d+)?)")
_RAISE_ABOVE = re.compile(r"Raise --mem-fraction-static above (\d+(?:\.\d+)?)")
_FRACTION = re.compile(r"mem[-_]fraction[-_]static['\"]?\s?[=:]\s?(\d+(?:\.\d+)?)")
_HOST = re.compile(r"[Rr]equesting (\d+(?:\.\d+)?) ?GB but only ha(?:ve|s) (\d+(?:\.\d+)?) ?GB")
_HOLDER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_OWN = re.compile(r"this process has [\d.]+ \w+ memory in use")
_PYTORCH = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of the GPU that ran out."""

    pid: int
    used_gib: float


def find_numbers(text: str) -> FailureNumbers:
    """Every figure that a failure's text has."""
    host = _HOST.search(text)
    minimum = _MINIMUM.search(text) or _RAISE_ABOVE.search(text)
    fraction = _FRACTION.search(text)
    return FailureNumbers(
        tried_gib=_first_gib(_TRIED, text),
        gpu_free_gib=_first_gib(_FREE, text),
        gpu_total_gib=_first_gib(_TOTAL, text),
        minimum_mem_fraction=float(minimum[1]) if minimum else None,
        mem_fraction_seen=float(fraction[1]) if fraction else None,
        host_requested_gb=float(host[1]) if host else None,
        host_available_gb=float(host[2]) if host else None,
    )


def find_gpu(text: str) -> int | None:
    """The index of the GPU that the text blames, as the process counts its GPUs."""
    return next((int(match[1]) for form in _GPU if (match := form.search(text))), None)


def foreign_holders(text: str) -> tuple[Holder, ...]:
    """Others than the failing process that hold memory of its GPU, from PyTorch's words.

    PyTorch names itself "this process" or, where it cannot tell pids, by its pid: then it is the one whose amount is
    nearest above what PyTorch says to have allocated, and a lone one is always itself.
    """
    holders = [Holder(int(pid), _gib(size, unit)) for pid, size, unit in _HOLDER.findall(text)]
    if _OWN.search(text):
        return tuple(holders)
    if len(holders) < 2:
        return ()
    allocated = _PYTORCH.search(text)
    if allocated is None:
        return ()
    own_gib = _gib(allocated[1], allocated[2])
    own = min(holders, key=lambda holder: abs(holder.used_gib - own_gib))
    return tuple(holder for holder in holders if holder is not own)


def _first_gib(forms: tuple[re.Pattern[str], ...], text: str) -> float | None:
    return next((_gib(match[1], match[2]) for form in forms if (match := form.search(text))), None)


def _gib(size: str, unit: str) -> float:
    unit = unit.lower()
    if unit in _DECIMAL:
        return float(size) * _DECIMAL[unit] / 2**30
    return float(size) * _GIB[unit]
