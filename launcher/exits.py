"""The one module that talks on stderr for a program and owns its exit codes.

stdout is data, stderr is talk. Codes: 0 done or found; 1 the machine is at fault or nothing could be read;
2 usage, configuration or workload; 3 nothing feasible; 130 interrupted and resumable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

OK = 0
MACHINE = 1
USAGE = 2
NOTHING_FEASIBLE = 3
INTERRUPTED = 130


def say(sentence: str) -> None:
    """One line for a person, on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def run_program(name: str, body: Callable[[], int], caught: tuple[type[Exception], ...]) -> NoReturn:
    """Run `body` and leave with its code; an exception of `caught` becomes one sentence and its own `exit_code`."""
    try:
        code = body()
    except caught as error:
        say(f"{name}: {error}")
        code = int(getattr(error, "exit_code", MACHINE))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout has gone (`| head`): nothing is left to tell it, and Python must not try at exit.
        sys.stdout = None
        code = OK
    sys.exit(code)
