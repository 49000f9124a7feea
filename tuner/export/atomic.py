"""Files that are whole at every moment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tuner.errors import DiskFull, StudyFileError


def check_writable(path: Path, key: str) -> None:
    """Refuse a path that `write_whole` could not write to. Raises StudyFileError with `key`, what named the path."""
    parent = path.absolute().parent
    if path.is_dir() or not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise StudyFileError(f"{key}: {path}: must be a file in a directory that can be written to")


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step. Raises DiskFull when that did not work; the old file is then untouched."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise DiskFull(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
