"""Failure logs: what `launcher.failures.classify` concludes of each input that has a `check`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, compared
from launcher.failure import Failure, Kind
from launcher.failures import Evidence, classify
from launcher.gpus import GpuProcess, GpuSample

FINER = {Kind.MODEL_NOT_FOUND: Kind.CONFIG_ERROR, Kind.COMMAND_NOT_FOUND: Kind.CONFIG_ERROR}
"""Kinds that the cases' table of classes does not tell apart."""


def judge(case: Case) -> Iterator[Check]:
    checks = case.about.get("check")
    for name, wanted in checks.items() if isinstance(checks, Mapping) else ():
        failure = classify(_evidence(case, name))
        for key, expected in wanted.items():
            yield _checked(f"{name}: {key}", key, expected, failure)


def _evidence(case: Case, name: str) -> Evidence:
    """The log, and what else the case knows of the process, the kernel and the GPUs."""
    others = [other for other in case.inputs if other != name]
    process, context = _mapping(case, "process.json"), _mapping(case, "context.json")
    return Evidence(
        log=case.text(name),
        exit_code=_exit_code(process),
        kernel_log="".join(case.text(other) for other in others if _is_kernel(other)),
        ended_by_us=process.get("killed_by_us") is True,
        own_pids=frozenset(context.get("our_pids", ())),
        oom_kills=_oom_kills(case, process),
        gpus=_gpus(context),
    )


def _mapping(case: Case, name: str) -> Mapping[str, Any]:
    content = case.json(name) if name in case.inputs else {}
    return content if isinstance(content, Mapping) else {}


def _exit_code(process: Mapping[str, Any]) -> int | None:
    """The code, or the signal by its name as a negative code."""
    code, by_signal = process.get("exit_code"), process.get("term_signal")
    if isinstance(code, int):
        return code
    known = signal.Signals.__members__.get(str(by_signal))
    return None if known is None else -known.value


def _oom_kills(case: Case, process: Mapping[str, Any]) -> int | None:
    """`oom_kill` of the cgroup's memory.events, where the case has it, or the container runtime's word."""
    if process.get("reason") == "OOMKilled" or process.get("oom_killed") is True:
        return 1
    texts = [case.text(name) for name in case.inputs if "memory.events" in name or "memory_events" in name]
    found = [re.search(r"^oom_kill (\d+)", text, re.MULTILINE) for text in texts]
    return next((int(match[1]) for match in found if match), None)


def _gpus(context: Mapping[str, Any]) -> tuple[GpuSample, ...]:
    """The driver's list of compute processes, as one GPU."""
    listed = context.get("nvml_compute_procs", ())
    processes = tuple(GpuProcess(one["pid"], one.get("used_mib", 0) * 2**20, one.get("name")) for one in listed)
    if not processes:
        return ()
    total = context.get("mem_total_mib")
    held = sum(process.used_bytes or 0 for process in processes)
    return (GpuSample(0, "GPU 0", memory_total_bytes=total * 2**20 if total else held, processes=processes),)


def _is_kernel(name: str) -> bool:
    return re.search(r"dmesg|kern|journal", name) is not None


def _checked(what: str, key: str, expected: Any, failure: Failure | None) -> Check:
    if key in ("failure_class", "failure_class_not"):
        names = _names(failure)
        listed = {expected} if isinstance(expected, str) else set(expected)
        agrees = bool(names & listed) == (key == "failure_class")
        return Check(what, expected, sorted(names) or None, agrees)
    return compared(what, expected, _conclusion(key, failure))


def _names(failure: Failure | None) -> set[str]:
    """The names under which the conclusion counts as right; "none" where there is no failure."""
    if failure is None:
        return {"none"}
    return {failure.kind.value, FINER.get(failure.kind, failure.kind).value}


def _conclusion(key: str, failure: Failure | None) -> Any:
    conclusions = {
        "is_failure": failure is not None,
        "is_gpu_oom": failure is not None and failure.is_gpu_oom,
        "mem_fraction_direction": failure.mem_fraction_direction.value if failure else "none",
        "hicache_direction": failure.hicache_direction.value if failure else "none",
        "retry": failure is not None and failure.retry,
        "retry_same_config": failure is not None and failure.retry,
        "culprit": failure.culprit.value if failure else None,
        "stage": failure.stage.value if failure else None,
        "rank": failure.rank if failure else None,
        "gpu": failure.gpu_index if failure else None,
    }
    return conclusions.get(key, f"nothing is known under {key!r}")
