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
from bench.program import out_folder, run
from launcher.errors import LauncherError, StartFailed
from launcher.exits import MACHINE, OK
from launcher.yaml_file import read_yaml
from tuner.budget import parse_duration
from tuner.daemon.assemble import find_world
from tuner.errors import StudyFileError
from tuner.study_file import Study, read_study_file


def main() -> int:
    told = _arguments()
    parse_duration(told.budget, "--budget")
    study_path, study = _with_tp(told.study, told.tp, told.out)
    rows = told.out / "rows.jsonl"
    box = Box(find_world(study, told.out), told.out)
    failed = []
    for name in told.steps:
        write = partial(_write, rows, name)
        if not asyncio.run(_step(name, Run(box, study_path, told.out, told.budget, write))):
            failed.append(name)
    print_figures(rows)
    if failed:
        print(f"not done: {', '.join(failed)}; why is in {rows}", file=sys.stderr)
    return MACHINE if failed else OK


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.h200x8")
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--budget", default="6m")
    parser.add_argument("--steps", type=_steps, default=list(STEPS))
    told = parser.parse_args()
    if "serve" in told.steps and "study" not in told.steps and not (told.out / "best-config.yaml").is_file():
        parser.error(f"--steps: serve starts {told.out}/best-config.yaml; name `study` before it")
    return told


def _steps(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no step; steps are {', '.join(STEPS)}")
    return names


def _with_tp(path: Path, tp_size: int, out: Path) -> tuple[Path, Study]:
    """The study file with `tp-size`, as it is run. Raises StudyFileError, blaming the user's own file."""
    read_study_file(path)
    told = read_yaml(path, StudyFileError)
    assert isinstance(told, dict)
    told["flags"] = {**told.get("flags", {}), "tp-size": tp_size}
    written = out_folder(out) / "study.yaml"
    written.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    return written, read_study_file(written)


def _write(rows: Path, step: str, row: Mapping[str, object]) -> None:
    with open(rows, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **row}) + "\n")


async def _step(name: str, run: Run) -> bool:
    """Whether it showed what it is for: a server that dies is a finding, and only what stops the step is not."""
    print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
    if run.simulated and name in UNSIMULATED:
        run.write({"skipped": "not on the simulated engine"})
        return True
    try:
        await STEPS[name](run)
    except StartFailed as error:
        run.write({"failure": error.failure.sentence, "evidence": error.failure.evidence})
    except (LauncherError, LookupError, OSError, ValueError, RuntimeError) as error:
        run.write({"error": f"{type(error).__name__}: {error}"})
        return False
    return True


if __name__ == "__main__":
    run("h200x8", main)
