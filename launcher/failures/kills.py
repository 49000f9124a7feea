"""Processes that were killed from outside: by the kernel for memory, or by somebody with a signal."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from launcher.failure import Stage
from launcher.failures.evidence import Evidence
from launcher.failures.story import Story
from launcher.logs import Step

_KERNEL_KILL = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (\d+)[^\n]*")
_SHELL_KILLED = re.compile(
    r"^(?:\S+: (?:line|行) \d+:\s+\d+ )?(?:Killed|已杀死|已砍掉|강제종료됨|強制終了|Getötet|Tué)(?:[ \t].*)?$", re.M
)
"""bash's word, in the languages in which it has been seen."""
_CHILD_ENDED = re.compile(
    r"^.*(?:crashed with exit code|exit ?code[:=]|exited with code) ?(-?\d+).*$", re.M | re.IGNORECASE
)
_LOG_PIDS = re.compile(r"\bpid[=: ]+(\d+)")
_HUNGRY = (Stage.WEIGHTS, Stage.HOST_POOL)
"""Stages that need much host memory: checkpoints pass through the page cache, HiCache is pinned."""
_SENT = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that somebody sends; the others are a process's own crash."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Somebody ended a process of the server."""

    by_kernel: bool
    """The OOM killer did it: certainly, or as far as the stage tells."""
    proof: str
    """The line, or what the exit code says."""


@dataclass(frozen=True, slots=True)
class _Sign:
    signal: int
    proof: str
    from_shell: bool = False


def find_kill(evidence: Evidence, story: Story, *, crashed: bool) -> Kill | None:
    """What killed the server when nothing in its log explains its end; None when it was not killed.

    `crashed`: its log ends in a traceback. SGLang ends itself with SIGKILL then, so that a signal proves nothing.
    """
    kernel = _kernel_kill(evidence)
    if kernel is not None:
        return Kill(by_kernel=True, proof=kernel)
    if crashed:
        return None
    sign = _child(story.last_words) or _shell(story.last_words) or _own(evidence)
    if sign is None or sign.signal not in _SENT:
        return None
    return Kill(_kernel_suspected(evidence, story, sign), sign.proof)


def _kernel_kill(evidence: Evidence) -> str | None:
    """A kernel line about a process of ours: old kills of other processes stand in the same buffer."""
    pids = evidence.own_pids or {int(pid) for pid in _LOG_PIDS.findall(evidence.log)}
    for match in _KERNEL_KILL.finditer(evidence.kernel_log):
        if int(match[1]) in pids:
            return match[0]
    if evidence.oom_kills:
        return f"memory.events of the cgroup counts {evidence.oom_kills} OOM kills"
    return None


def _child(log: str) -> _Sign | None:
    """SGLang's word for a child that ended (0.5.10 and later); the first, the others follow from it."""
    match = _CHILD_ENDED.search(log)
    if match is None:
        return None
    code = int(match[1])
    return _Sign(-code if code < 0 else max(0, code - 128), match[0])


def _shell(log: str) -> _Sign | None:
    match = _SHELL_KILLED.search(log)
    return _Sign(signal.SIGKILL, match[0], from_shell=True) if match else None


def _own(evidence: Evidence) -> _Sign | None:
    number = evidence.signal
    if number is None or number not in set(signal.Signals):
        return None
    return _Sign(number, f"the process ended by {signal.Signals(number).name}")


def _kernel_suspected(evidence: Evidence, story: Story, sign: _Sign) -> bool:
    """SIGKILL out of the blue while host memory fills is the kernel's, unless its counters say no.

    A shell's bare "Killed" during any start is taken for it too, and a child of which SGLang itself says that "a common
    cause is the OS OOM killer": nobody else kills what has just begun.
    """
    if evidence.oom_kills == 0 or sign.signal != signal.SIGKILL or story.reached(Step.READY):
        return False
    return sign.from_shell or "OOM killer" in sign.proof or story.last_stage in _HUNGRY
