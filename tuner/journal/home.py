"""Where studies live: one directory each under KVTUNE_HOME (default: the user's state directory)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from launcher.process import is_gone
from tuner.errors import StudyFileError
from tuner.journal.lock import read_holder

JOURNAL = "journal.sqlite3"
LOCK = "daemon.lock"


def home() -> Path:
    """The directory that holds all studies of this user."""
    told = os.environ.get("KVTUNE_HOME")
    if told:
        return Path(told)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "kvtune"


def new_study_directory(name: str) -> Path:
    """Make a directory for a new study, named by its model and the moment: `tiny-llama-1129-1542`."""
    moment = time.strftime("%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        directory = home() / "studies" / f"{name}-{moment}{suffix}"
        try:
            directory.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise StudyFileError(f"{home()}: no study can be kept there ({error.strerror}); set KVTUNE_HOME") from None
        return directory
    raise StudyFileError(f"{home()}: a hundred studies began this second; wait one")


def find_studies() -> tuple[Path, ...]:
    """Every study of this user; the one that was begun or resumed last comes last."""
    found = [path.parent for path in (home() / "studies").glob(f"*/{JOURNAL}")]
    return tuple(sorted(found, key=_last_run_s))


def _last_run_s(directory: Path) -> float:
    """A daemon writes its lock when it begins; before the first one there is only the directory."""
    lock = directory / LOCK
    return (lock if lock.exists() else directory).stat().st_mtime


def find_running_studies() -> tuple[Path, ...]:
    """The studies of this user that a living daemon works on, in the order of their last run."""
    return tuple(directory for directory in find_studies() if is_running(directory))


def is_running(directory: Path) -> bool:
    holder = read_holder(directory / LOCK)
    return holder is not None and not is_gone(holder)


def find_study(name: str | None) -> Path:
    """A study by directory, by id, or by the beginning of an id; None is the newest.

    Raises StudyFileError when there is none or the name fits several.
    """
    if name is not None and (Path(name) / JOURNAL).is_file():
        return Path(name)
    studies = find_studies()
    fitting = [path for path in studies if name is None or path.name.startswith(name)]
    exact = [path for path in fitting if path.name == name]
    if exact or (fitting and name is None):
        return (exact or fitting)[-1]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise StudyFileError(f"study {name!r}: fits {', '.join(path.name for path in fitting)}; write more of it")
    known = ", ".join(path.name for path in studies[-5:]) or "none yet"
    raise StudyFileError(f"study {name or ''!r}: there is no such study in {home()}; known are: {known}")
