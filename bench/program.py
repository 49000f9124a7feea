"""How a bench program ends: bad input is one sentence and code 2, as in the programs that it measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from launcher.errors import LauncherError, UsageError
from launcher.exits import run_program
from tuner.errors import TunerError


def run(name: str, body: Callable[[], int]) -> NoReturn:
    """Run `body` and leave with its code."""
    run_program(f"bench.{name}", body, (LauncherError, TunerError))


def out_folder(path: Path) -> Path:
    """The folder for the results, made if need be. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be made a folder for the results ({error.strerror})") from None
    return path
