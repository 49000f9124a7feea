"""GPU panel: one line a GPU, its memory stacked by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tui import format as fmt
from tui.panels.alike import Group, groups_of, indices, spread
from tui.panels.graph import stacked
from tui.panels.look import PART_NAMES, PARTS, SHORT_NAMES, Look, Role
from tui.panels.row import Pen, Row, Span, clip, title_row
from tui.snapshot import GpuView, MemoryParts, Snapshot

WIDE = 110
HOT_C = 85.0


def gpu_rows(snapshot: Snapshot, width: int, height: int, look: Look, number: int, first: int = 0) -> list[Row]:
    """The panel in at most `height` rows; `first` is the GPU to begin with when they do not all fit."""
    gpus = snapshot.gpus
    rows = [_title(snapshot, width, look, number)]
    if not gpus:
        text = snapshot.gpu_problem or "no GPU on this machine"
        return [*rows, Pen(width).gap(2).put(text, "dim").row()][:height]
    room = height - 1
    if room < len(gpus) and len(groups := groups_of(gpus, is_odd)) <= room:
        return [*rows, *_folded(groups, width, look)]
    first = max(0, min(first, len(gpus) - room))
    shown = gpus[first : first + room]
    names = {server.url: clip(server.short_name, 12) for server in snapshot.servers}
    columns = Columns(
        width, names if len(names) > 1 and width >= WIDE else {}, max((len(_state(gpu)) for gpu in gpus), default=0)
    )
    rows += [_gpu_row(gpu, columns, look) for gpu in shown]
    if len(shown) < len(gpus) and len(rows) > 1:
        note = f"GPUs {first}-{first + len(shown) - 1} of {len(gpus)}"
        rows[0] = title_row(number, "GPU memory", width, look, note)
    return rows[:height]


def _title(snapshot: Snapshot, width: int, look: Look, number: int) -> Row:
    """The legend is the title's note: only the parts that some GPU has. The GPUs' names fill what is left."""
    pen = Pen(width)
    pen.put(look.rule, "rule").gap().put(look.number(number), "key").put("GPU memory", "title").gap()
    legend = [part for part in PARTS if _anywhere(part, snapshot.gpus)]
    names = PART_NAMES if width >= WIDE else SHORT_NAMES
    wide = sum(len(names[part]) + 3 for part in legend) + 2
    models = _models(snapshot.gpus)
    if len(models) + wide < pen.left:
        pen.put(models, "dim").gap()
    pen.put(look.rule * max(1, pen.left - wide), "rule").gap()
    for part in legend:
        pen.put(look.fill(part), part).put(f"{names[part]}  ", "dim")
    pen.put(look.rule * pen.left, "rule")
    return pen.row(("panel", str(number)))


def _anywhere(part: str, gpus: Sequence[GpuView]) -> bool:
    return any(gpu.parts is not None and getattr(gpu.parts, part) > 0 for gpu in gpus)


def _models(gpus: Sequence[GpuView]) -> str:
    names = [gpu.sample.name for gpu in gpus]
    kinds = [f"{names.count(name)} × {clip(name, 52)}" for name in dict.fromkeys(names)]
    simulated = any(gpu.sample.simulated and "simulated" not in gpu.sample.name for gpu in gpus)
    return ", ".join(kinds) + (" (simulated)" if simulated else "")


def is_odd(gpu: GpuView) -> bool:
    """Whether a GPU must be seen by itself."""
    return gpu.sample.lost or gpu.parts is None or bool(gpu.strangers or _state(gpu))


def _folded(groups: Sequence[Group], width: int, look: Look) -> list[Row]:
    """A row for each group; the bar and the memory are those of its fullest GPU."""
    names = max(len(indices(group)) for group in groups)
    state = max(len(_state(group[0])) for group in groups)
    return [_group_row(group, names, state, width, look) for group in groups]


def _group_row(group: Group, names: int, state: int, width: int, look: Look) -> Row:
    samples = [gpu.sample for gpu in group]
    fullest = max(group, key=lambda gpu: gpu.sample.memory_used_bytes or 0)
    hottest = max((s.temperature_c for s in samples if s.temperature_c is not None), default=None)
    used, total = fmt.gib(fullest.sample.memory_used_bytes), fmt.gib(fullest.sample.memory_total_bytes)
    pen = Pen(width).whole((f"  {indices(group):<{names}} ", "dim"))
    if samples[0].lost:
        return pen.put("LOST", "bad").put("  the driver has lost this GPU", "dim").row(("gpu", str(samples[0].index)))
    pen.whole((f"{spread([s.utilization_share for s in samples], fmt.share):>7}", "text"))
    pen.whole((f"{spread([s.power_w for s in samples], _whole):>8}W", "text"))
    pen.whole((f"{spread([s.temperature_c for s in samples], _whole):>6}°", _heat(hottest)))
    pen.whole((f" {used:>5}/{total} GiB{' each' if len(group) > 1 else '     '}", "text"))
    if state:
        pen.whole((f" {_state(group[0]):<{state}}", "warn"))
    if pen.left >= 10:
        pen.gap().extend(_bar(fullest.parts, pen.left - 1, look))
    return pen.row(("gpu", str(samples[0].index)))


@dataclass(frozen=True, slots=True)
class Columns:
    """What all rows have in common, so that their bars begin in one column."""

    width: int
    names: dict[str, str]
    """Of the servers by URL, where it must be told which GPU is whose."""
    state: int
    """Cells for what is out of the ordinary."""


def _gpu_row(gpu: GpuView, columns: Columns, look: Look) -> Row:
    sample, names = gpu.sample, columns.names
    pen = Pen(columns.width)
    pen.put(f"{sample.index:>3} ", "dim" if not sample.lost else "bad")
    if names:
        pen.put(f"{names.get(gpu.server_url or '', ''):<{max(map(len, names.values()))}} ", "dim")
    target = ("gpu", str(sample.index))
    if sample.lost:
        return pen.put("LOST", "bad").put("  the driver has lost this GPU", "dim").row(target)
    for text, role in _figures_wide(gpu) if columns.width >= WIDE else _figures_narrow(gpu):
        pen.put(text, role)
    if columns.state:
        pen.put(f" {_state(gpu):<{columns.state}}", "warn")
    pen.gap().extend(_bar(gpu.parts, max(8, pen.left - 1), look))
    return pen.row(target)


@lru_cache(maxsize=64)
def _bar(parts: MemoryParts | None, width: int, look: Look) -> list[Span]:
    """GPUs of one server are alike: one drawing serves them all."""
    if parts is None:
        return [("memory not told by the driver".ljust(width)[:width], "dim")]
    sizes = [(part, float(getattr(parts, part))) for part in PARTS]
    return stacked(sizes, sum(size for _, size in sizes), width, look)


def _figures_wide(gpu: GpuView) -> list[tuple[str, Role]]:
    """What changes every second stands left of the bar: see `tui.widgets.changed_to`."""
    sample = gpu.sample
    used, total = fmt.gib(sample.memory_used_bytes), fmt.gib(sample.memory_total_bytes)
    return [
        (f"{fmt.share(sample.utilization_share):>4}", "text"),
        (f"{_whole(sample.power_w):>5}", "text"),
        (f"/{_whole(sample.power_limit_w)} W", "dim"),
        (f"{_whole(sample.temperature_c):>4}°", _heat(sample.temperature_c)),
        (f"{used:>7}", "text"),
        (f" of {total:>4} GiB", "dim"),
    ]


def _figures_narrow(gpu: GpuView) -> list[tuple[str, Role]]:
    sample = gpu.sample
    used, total = fmt.gib(sample.memory_used_bytes), fmt.gib(sample.memory_total_bytes)
    return [
        (f"{fmt.share(sample.utilization_share):>4}", "text"),
        (f"{_whole(sample.power_w):>4}W", "text"),
        (f"{_whole(sample.temperature_c):>3}°", _heat(sample.temperature_c)),
        (f"{used:>5}/{total:<4}", "text"),
    ]


def _whole(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.0f}"


def _heat(temperature_c: float | None) -> Role:
    return "warn" if temperature_c is not None and temperature_c >= HOT_C else "text"


def _state(gpu: GpuView) -> str:
    """What is out of the ordinary: throttling first."""
    sample = gpu.sample
    if sample.throttle_reasons:
        return sample.throttle_reasons[0].split(" (")[0]
    if sample.ecc_uncorrected:
        return f"ECC {sample.ecc_uncorrected}"
    return "MIG" if sample.mig else ""
