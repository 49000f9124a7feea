"""A child of the simulated server: a scheduler that holds GPU memory, or the detokenizer.

Standard library only. Run by path, with the child's title as argv[0]; `-` stands for no directory:

    TITLE -S holder.py DIR GPU OUTLIVES_S

It keeps touching DIR/held-<GPU>-<pid>.json while it lives, and dies with its parent (PR_SET_PDEATHSIG), as
SGLang's schedulers do. OUTLIVES_S > 0 makes it a zombie scheduler instead, which stays so many seconds
after the parent is gone.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_BEAT_S = 0.2
_IDLE_BEAT_S = 2.0


def main() -> None:
    directory, gpu, outlives_s, parent = sys.argv[1], sys.argv[2], float(sys.argv[3]), os.getppid()
    path = os.path.join(directory, f"held-{gpu}-{os.getpid()}.json")
    if outlives_s <= 0:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    left_at: float | None = None
    while left_at is None or time.monotonic() - left_at < outlives_s:
        if left_at is None and os.getppid() != parent:
            left_at = time.monotonic()
        if directory != "-":
            with contextlib.suppress(OSError):
                os.utime(path)
        time.sleep(_IDLE_BEAT_S if directory == "-" else _BEAT_S)


main()
