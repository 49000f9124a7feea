"""What can go wrong in kvtop, as one tree.

TuiError              exit_code 1
├── SettingsError     exit_code 2: a flag, an environment variable or the config file; names place and value
├── RecordError       exit_code 2: a recording that cannot be read or written; names file and line
└── DemoError         exit_code 1: the simulated engine of --demo did not start
"""

from __future__ import annotations


class TuiError(Exception):
    """Base of everything kvtop raises on purpose. `str()` is one sentence for a person."""

    exit_code = 1


class SettingsError(TuiError):
    """A flag, an environment variable or a key of the config file is wrong."""

    exit_code = 2


class RecordError(TuiError):
    """A recording cannot be read or written."""

    exit_code = 2


class DemoError(TuiError):
    """The simulated engine of --demo did not start."""
