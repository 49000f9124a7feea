"""`python -m bench.cases [DIR]`: run every case of a directory; exit 0 only if all agree.

Without DIR the shared cases are run. The table says how many checks of each case agree; each that does not is printed
with what was expected and what came.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cases import endpoint, failure_log, log_lines, metrics, nvml, process, server_info, yaml_files
from bench.cases.case import Case, Check, load_cases
from bench.figures import figure

SHARED = Path(os.environ.get("KVTUNE_SHARED", Path(__file__).resolve().parents[3] / "shared"))

JUDGES: dict[str, Callable[[Case], Iterator[Check]]] = {
    "failure_log": failure_log.judge,
    "log_lines": log_lines.judge,
    "metrics": metrics.judge,
    "endpoint": endpoint.judge,
    "server_info": server_info.judge,
    "nvml": nvml.judge,
    "process": process.judge,
    "yaml": yaml_files.judge,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One case and all its checks."""

    case: Case
    checks: tuple[Check, ...]

    @property
    def agreed(self) -> int:
        return sum(check.agrees for check in self.checks)

    @property
    def agrees(self) -> bool:
        """A case of which nothing was checked does not."""
        return bool(self.checks) and self.agreed == len(self.checks)


def run(case: Case) -> Result:
    """Judge one case by its kind. What goes wrong in it is its own disagreement: the others are still judged."""
    judge = JUDGES.get(case.kind)
    if judge is None:
        return Result(case, (Check("kind", " or ".join(JUDGES), case.kind, False),))
    try:
        return Result(case, tuple(judge(case)))
    except Exception as error:  # noqa: BLE001 - shown in the table, as the disagreement that it is
        return Result(case, (Check("runs", "no error", f"{type(error).__name__}: {error}", False),))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cases", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=SHARED / "cases")
    directory = parser.parse_args(arguments).directory
    try:
        results = [run(case) for case in load_cases(directory)]
    except (OSError, ValueError) as error:
        print(f"cases: {error}", file=sys.stderr)
        return 2
    show(results)
    agreed = sum(result.agrees for result in results)
    figure("cases_agree_share", agreed / len(results), "share")
    return 0 if agreed == len(results) else 1


def show(results: list[Result]) -> None:
    """The table, then every disagreement."""
    width = max(len(result.case.name) for result in results)
    for result in results:
        verdict = "agrees" if result.agrees else "DISAGREES"
        share = f"{result.agreed:>3}/{len(result.checks):<3}"
        print(f"{result.case.name:<{width}}  {result.case.kind:<11}  {share}  {verdict}")
    print(f"{sum(result.agrees for result in results)} of {len(results)} cases agree")
    for result in results:
        if not result.checks:
            print(f"{result.case.name}: nothing could be checked")
        for check in result.checks:
            if not check.agrees:
                print(f"{result.case.name}: {check.what}\n    expected {check.expected!r}\n    got      {check.got!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
