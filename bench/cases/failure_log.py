"""Failure logs: what `launcher.failures.classify` concludes of each input that has a `check`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, compared
from launcher.failure import Failure, Kind
from launcher.failures import Evidence, classify

FINER = {Kind.MODEL_NOT_FOUND: Kind.CONFIG_ERROR, Kind.COMMAND_NOT_FOUND: Kind.CONFIG_ERROR}
"""Kinds that the cases' table of classes does not tell apart."""


def judge(case: Case) -> Iterator[Check]:
    checks = case.about.get("check")
    for name, wanted in checks.items() if isinstance(checks, Mapping) else ():
        failure = classify(_evidence(case, name))
        for key, expected in wanted.items():
            yield _checked(f"{name}: {key}", key, expected, failure)


def _evidence(case: Case, name: str) -> Evidence:
    """The log, and what else the case knows of the process and the GPUs."""
    process = case.json("process.json") if "process.json" in case.inputs else {}
    process = process if isinstance(process, Mapping) else {}
    code = process.get("exit_code")
    return Evidence(
        log=case.text(name),
        exit_code=code if isinstance(code, int) else None,
        kernel_log="".join(case.text(other) for other in case.inputs if other != name and _is_kernel(other)),
        ended_by_us=process.get("killed_by_us") is True,
    )


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
