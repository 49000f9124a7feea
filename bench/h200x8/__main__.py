"""`python -m bench.h200x8 STUDY.yaml OUT --tp N [--budget 6m] [--steps study,serve,starved,ranks,host,overcommit]`

All that several GPUs can show, in one run: rows go to OUT/rows.jsonl as soon as they are known, so that a run that is
cut short keeps what it has. A step that fails leaves a row with its error, and the next one goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import yaml

from bench.h200x8.box import Box
from bench.h200x8.figures import print_figures
from bench.h200x8.steps import STEPS, UNSIMULATED, Run
from launcher.errors import LauncherError, StartFailed
from tuner.daemon.assemble import find_world
from tuner.study_file import read_study_file


def main() -> int:
    told = _arguments()
    told.out.mkdir(parents=True, exist_ok=True)
    study_path = _with_tp(told.study, told.tp, told.out)
    rows = told.out / "rows.jsonl"
    box = Box(find_world(read_study_file(study_path), told.out), told.out)
    for name in told.steps.split(","):
        write = partial(_write, rows, name)
        asyncio.run(_step(name, Run(box, study_path, told.out, told.budget, write)))
    print_figures(rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.h200x8")
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--budget", default="6m")
    parser.add_argument("--steps", default=",".join(STEPS))
    return parser.parse_args()


def _with_tp(study: Path, tp_size: int, out: Path) -> Path:
    """The study file with `tp-size`, as it is run."""
    told = yaml.safe_load(study.read_text(encoding="utf-8"))
    told["flags"] = {**told.get("flags", {}), "tp-size": tp_size}
    path = out / "study.yaml"
    path.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    return path


def _write(rows: Path, step: str, row: Mapping[str, object]) -> None:
    with open(rows, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **row}) + "\n")


async def _step(name: str, run: Run) -> None:
    print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
    if run.simulated and name in UNSIMULATED:
        run.write({"skipped": "not on the simulated engine"})
        return
    try:
        await STEPS[name](run)
    except StartFailed as error:
        run.write({"error": error.failure.sentence, "evidence": error.failure.evidence})
    except (LauncherError, LookupError, OSError, ValueError, RuntimeError) as error:
        run.write({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    sys.exit(main())
