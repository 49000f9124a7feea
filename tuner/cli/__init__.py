"""kvtune-auto, the command line. What is slow to import is imported by the commands that need it."""

from __future__ import annotations

from typing import NoReturn

import click

from launcher import exits
from launcher.errors import LauncherError
from tuner.errors import TunerError

__all__ = ["main"]


def main() -> NoReturn:
    """The entry point: every error on purpose is one sentence and an exit code."""
    exits.run_program("kvtune-auto", _body, (TunerError, LauncherError))


def _body() -> int:
    from tuner.cli.program import program

    try:
        code = program.main(prog_name="kvtune-auto", standalone_mode=False)
    except click.exceptions.Abort:
        return exits.INTERRUPTED
    except click.ClickException as error:
        exits.say(f"kvtune-auto: {error.format_message()}")
        return exits.USAGE
    return code if isinstance(code, int) else exits.OK
