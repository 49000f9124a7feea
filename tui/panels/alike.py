"""GPUs that are alike, in one row: `0-7  95-97%  468-489W  66-73°  90.6/95.6 each`. For screens without a line for
each GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tui.snapshot import GpuView

Group = tuple[GpuView, ...]
SAME_MEMORY_SHARE = 0.02
"""Of the total: more apart than this is another load."""
SAME_POWER_SHARE = 0.25
"""A GPU that draws this much less than its fellows has a row of its own."""


def groups_of(gpus: Sequence[GpuView], is_odd: Callable[[GpuView], bool]) -> list[Group]:
    """In the order of their first GPU. What is odd (lost, throttled, shared) is never folded away."""
    groups: list[list[GpuView]] = []
    for gpu in gpus:
        fellows = next((group for group in groups if _alike(group[0], gpu, is_odd)), None)
        if fellows is None:
            groups.append([gpu])
        else:
            fellows.append(gpu)
    return [tuple(group) for group in groups]


def _alike(one: GpuView, other: GpuView, is_odd: Callable[[GpuView], bool]) -> bool:
    if is_odd(one) or is_odd(other) or one.server_url != other.server_url:
        return False
    a, b = one.sample, other.sample
    if (a.name, a.memory_total_bytes) != (b.name, b.memory_total_bytes):
        return False
    return _near(a.memory_used_bytes, b.memory_used_bytes, SAME_MEMORY_SHARE * (a.memory_total_bytes or 0)) and _near(
        a.power_w, b.power_w, SAME_POWER_SHARE * (a.power_w or 0.0)
    )


def _near(one: float | None, other: float | None, apart: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= apart


def indices(group: Group) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for index in sorted(gpu.sample.index for gpu in group):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def spread(values: Sequence[float | None], tell: Callable[[float | None], str]) -> str:
    """`468-489`: the least and the most; one figure where they read the same, a dash where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return tell(None)
    low, high = tell(min(known)), tell(max(known))
    return low if low == high else f"{low.rstrip('%')}-{high}"
