"""What can go wrong in the launcher, as one tree.

LauncherError              exit_code 1
├── UsageError             exit_code 2: the user's input; names the place, the key, the value and what would be right
├── MachineError           the machine is at fault, not the input and not the configuration
│   └── CleanSlateError    something still holds memory, a port or a process, and it is not ours to end
├── StartFailed            a server did not become ready; carries the Failure
└── ObservationError       a server could not be read
    ├── Unreachable        refused, timed out, reset
    ├── Unauthorized       401 or 403
    ├── NotServed          404: the endpoint is not there (metrics off, old version)
    └── Unparsable         it answered, but not with what SGLang answers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.failure import Failure


class LauncherError(Exception):
    """Base of everything the launcher raises on purpose. `str()` is one sentence for a person."""

    exit_code = 1


class UsageError(LauncherError):
    """The user's input is wrong. The message names the place, the key, the value and what would be right."""

    exit_code = 2


class MachineError(LauncherError):
    """The machine is at fault; the same input may work once it is mended."""


class CleanSlateError(MachineError):
    """Memory, a port or a process is still held by something that is not ours to end."""


class StartFailed(LauncherError):
    """A server did not become ready."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


class ObservationError(LauncherError):
    """A server could not be read."""


class Unreachable(ObservationError):
    """Refused, timed out or reset."""


class Unauthorized(ObservationError):
    """401 or 403: an API key is needed."""


class NotServed(ObservationError):
    """404: this server does not serve that endpoint."""


class Unparsable(ObservationError):
    """It answered, but not with what SGLang answers."""
