"""The study's memory: a SQLite journal that records intent before action and survives kill -9.

Write with `Journal`, read with `read_study`; a reader never blocks the writer.
"""

from tuner.journal.home import find_running_studies, find_studies, find_study, new_study_directory
from tuner.journal.journal import Journal
from tuner.journal.read import read_study
from tuner.journal.view import StudyView

__all__ = [
    "Journal",
    "StudyView",
    "find_running_studies",
    "find_studies",
    "find_study",
    "new_study_directory",
    "read_study",
]
