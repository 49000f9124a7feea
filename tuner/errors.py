"""What can go wrong in the tuner, as one tree.

TunerError                 exit_code 1
├── StudyFileError         exit_code 2: a study file's key or value; names file, key, value and what would be right
├── WorkloadError          exit_code 2: a workload file or spec; names file and line
├── JournalError           the study's journal cannot be read or written
│   ├── StudyLocked        exit_code 2: another daemon holds the study or its GPUs; names its pid
│   └── DiskFull           a write did not go through; nothing of it was kept, and the same write may be tried again
└── NothingFeasible        exit_code 3: no configuration of the space could be measured
"""

from __future__ import annotations


class TunerError(Exception):
    """Base of everything the tuner raises on purpose. `str()` is one sentence for a person."""

    exit_code = 1


class StudyFileError(TunerError):
    """A key or a value of a study file (or a flag that stands for one) is wrong."""

    exit_code = 2


class WorkloadError(TunerError):
    """A workload file or a workload spec is wrong."""

    exit_code = 2


class JournalError(TunerError):
    """The study's journal cannot be read or written."""


class StudyLocked(JournalError):
    """Another daemon holds this study or its GPUs."""

    exit_code = 2


class DiskFull(JournalError):
    """A write did not go through. Nothing of it was kept; the same write may be tried again."""


class NothingFeasible(TunerError):
    """No configuration of the space could be measured."""

    exit_code = 3
