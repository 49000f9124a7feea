"""The study's memory: a SQLite journal that records intent before action and survives kill -9.

Write with `Journal`, read with `read_study`; a reader never blocks the writer. Both are imported when
they are first asked for: a screen that only looks whether a study runs here need not load their machinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.journal.home import find_running_studies, find_studies, find_study, new_study_directory
from tuner.journal.view import StudyView

if TYPE_CHECKING:
    from tuner.journal.journal import Journal
    from tuner.journal.read import read_study

__all__ = [
    "Journal",
    "StudyView",
    "find_running_studies",
    "find_studies",
    "find_study",
    "new_study_directory",
    "read_study",
]


def __getattr__(name: str) -> object:
    if name == "Journal":
        from tuner.journal.journal import Journal

        return Journal
    if name == "read_study":
        from tuner.journal.read import read_study

        return read_study
    raise AttributeError(name)
