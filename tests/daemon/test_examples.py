"""The examples and the README hold: every flag they use exists, scripts parse, and systemd takes the unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tuner.cli.program import program

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_USED = re.compile(r"kvtune-auto((?:[^\n;#`]|\\\n)*)")
_FLAG = re.compile(r"(?<=\s)(--[a-z][a-z-]*)")


def commands_in(path: Path) -> Iterator[str]:
    """What follows each `kvtune-auto` up to the end of its command."""
    yield from (found[1] for found in _USED.finditer(path.read_text(encoding="utf-8")))


def known_flags() -> set[str]:
    commands: list[click.Command] = [program, *program.commands.values()]
    return {name for command in commands for option in command.params for name in option.opts} | {"--help"}


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(path for path in EXAMPLES.iterdir() if path.is_file())], ids=lambda p: p.name
)
def test_every_flag_that_is_shown_exists(path: Path) -> None:
    used = {flag for command in commands_in(path) for flag in _FLAG.findall(command)}
    assert used <= known_flags()


def test_the_flags_are_found_at_all() -> None:
    used = {flag for name in ("kvtune-auto.sbatch", "kvtune-auto.service") for flag in _flags_of(EXAMPLES / name)}
    assert used >= {"--resume", "--config", "--budget", "--name-file"}


def _flags_of(path: Path) -> set[str]:
    """Also those that a script puts together before it calls kvtune-auto."""
    return {flag for flag in _FLAG.findall(path.read_text(encoding="utf-8")) if flag in known_flags()}


def test_the_slurm_script_parses_and_asks_slurm_for_what_it_knows() -> None:
    script = EXAMPLES / "kvtune-auto.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    asked = re.findall(r"^#SBATCH --([a-z-]+)", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(asked) <= {"job-name", "nodes", "exclusive", "gpus-per-node", "time", "signal", "requeue"}


def complaints(directory: Path, text: str) -> str:
    """What systemd says of a user's unit."""
    unit = directory / "kvtune-auto.service"
    unit.write_text(text, encoding="utf-8")
    words = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (EXAMPLES / "kvtune-auto.service").read_text(encoding="utf-8")
    assert complaints(tmp_path, text) == ""
    assert "Restrat" in complaints(tmp_path, text.replace("Restart=", "Restrat=", 1))
