"""The state directory through which simulated processes hold "GPU memory": one small JSON file per holder.

    DIR/box.json                  what the box is, and what strangers hold on it
    DIR/held-<gpu>-<pid>.json     written by a server for each scheduler, which then keeps touching it:
                                  its last breath is the file's modification time

Memory is held while the pid lives, and `release_wall_s` longer, as on a real driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.errors import UsageError
from launcher.simulated.faults import NO_FAULTS, Faults

if TYPE_CHECKING:
    from launcher.simulated.presets import Preset

BOX_FILE = "box.json"
STRANGER_PID = 4_194_303
"""The largest pid that Linux gives: a stranger in somebody else's namespace."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one process holds on one GPU."""

    gpu: int
    pid: int
    started_s: float
    """The process's start time (psutil), so that a reused pid is not taken for it."""
    title: str
    used_bytes: int
    busy_share: float
    release_wall_s: float
    """How long after its death the driver still shows the memory, in wall seconds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A holder as a reader finds it: alive, or dead with memory that is not back yet."""

    held: Held
    alive: bool


def prepare_gpu_state(directory: str | Path, preset: Preset, faults: Faults = NO_FAULTS) -> Path:
    """Make the directory a box of the preset's GPUs; an existing box is replaced, holders are left alone."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    box: dict[str, Any] = {
        "preset": preset.name,
        "box": preset.box.model_dump(),
        "strangers": [{"gpu": gpu, "gib": gib} for gpu, gib in faults.leftover_gib],
        "lost_gpu": faults.lost_gpu,
        "throttled_gpu": 0 if faults.slow_gpu_factor > 1 else None,
    }
    _write(path / BOX_FILE, box)
    return path


def holds_box(directory: Path, preset: Preset) -> bool:
    """Whether the directory is a box of this preset already."""
    try:
        return bool(read_box(directory)["preset"] == preset.name)
    except UsageError:
        return False


def changes_box(faults: Faults) -> bool:
    """Whether faults show on the GPUs themselves, so that the box must be written anew."""
    return bool(faults.leftover_gib) or faults.lost_gpu is not None or faults.slow_gpu_factor > 1


def read_box(directory: Path) -> dict[str, Any]:
    """The box of a state directory. Raises UsageError when there is none."""
    try:
        box = json.loads((directory / BOX_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{directory} holds no simulated GPUs: {BOX_FILE} is missing (a simulated server writes it)"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory / BOX_FILE}: cannot be read ({error})") from error
    return dict(box)


def write_held(directory: Path, held: Held) -> Path:
    """Say what a process holds; returns the file that it must keep touching."""
    path = _held_path(directory, held)
    _write(path, asdict(held))
    return path


def read_held(directory: Path) -> tuple[Seen, ...]:
    """Every holder that still counts, alive or not yet released."""
    seen = []
    for path in sorted(directory.glob("held-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            held = Held(**json.loads(path.read_text(encoding="utf-8")))
            alive = _lives(held)
            if alive or time.time() - path.stat().st_mtime < held.release_wall_s:
                seen.append(Seen(held, alive))
    return tuple(seen)


def sweep(directory: Path) -> None:
    """Remove the files of holders whose memory is back."""
    counted = {_held_path(directory, seen.held) for seen in read_held(directory)}
    for path in directory.glob("held-*.json"):
        if path not in counted:
            path.unlink(missing_ok=True)


def _held_path(directory: Path, held: Held) -> Path:
    return directory / f"held-{held.gpu}-{held.pid}.json"


def _lives(held: Held) -> bool:
    try:
        process = psutil.Process(held.pid)
        same = abs(process.create_time() - held.started_s) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _write(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)
