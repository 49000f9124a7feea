"""The programs beside which kvtop is measured, where they can be had on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.exits import say


@dataclass(frozen=True, slots=True)
class Rival:
    """One program at one refresh a second."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def rivals(directory: Path) -> list[Rival]:
    """Those that are there; the others are named on stderr and left out."""
    found = [_vllmstat(directory), _btop(directory), _htop()]
    return [rival for rival in found if rival is not None]


def _vllmstat(directory: Path) -> Rival | None:
    """vllmstat with its own mock server, in an environment that is thrown away afterwards."""
    place = directory / "vllmstat"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(place / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "vllmstat"]
    done = subprocess.run(install, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        say(f"left out: vllmstat cannot be installed: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
        return None
    return Rival("vllmstat", (str(place / "bin" / "vllmstat"), "--mock", "--interval", "1"))


def _btop(directory: Path) -> Rival | None:
    program = shutil.which("btop")
    if program is None:
        say("left out: btop is not installed")
        return None
    settings = directory / "config" / "btop"
    settings.mkdir(parents=True)
    (settings / "btop.conf").write_text("update_ms = 1000\n")
    env = {"XDG_CONFIG_HOME": str(settings.parent), "LANG": "C.UTF-8"}
    return Rival("btop", (program, "--utf-force"), env)


def _htop() -> Rival | None:
    program = shutil.which("htop")
    if program is None:
        say("left out: htop is not installed")
        return None
    return Rival("htop", (program, "-d", "10"))
