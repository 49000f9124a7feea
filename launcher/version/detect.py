"""Ask a launch command which SGLang it would start.

Three ways, by what the command is: the simulated engine answers `--version`; where the words name an
interpreter and `-m sglang.launch_server`, that interpreter is given a question instead of the module,
behind the same wrapper; anything else (`sglang serve`, a script) is run as it is, with a `sitecustomize`
that asks the question in the very interpreter that would become the server, and ends it there. SGLang
itself is imported in none of them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources

from launcher.command import SERVER_MODULE, Wrapper, check_executable, compose, is_simulated, unwrap
from launcher.errors import UsageError
from launcher.redact import redact_text
from launcher.version.build import SglangBuild

_ANSWER = re.compile(r"^KVTUNE_PROBE (\{.*\})\s*$", re.MULTILINE)
_PRINTED = re.compile(r"\bsglang\b\D{0,20}(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE)
_TELL_US = "if you know the version, write it into the study as `sglang_version`"


def detect_build(
    command: Sequence[str], env: Mapping[str, str], *, timeout_s: float, declared_version: str | None = None
) -> SglangBuild:
    """The build that `command` would start, with `env` added to our own environment.

    `declared_version` is the user's word for a command that cannot be asked. The answer is kept for the
    life of this process. Blocks up to `timeout_s` wall seconds. Raises UsageError when the command does not
    exist or does not answer.
    """
    if declared_version is not None:
        return SglangBuild(declared_version, simulated=is_simulated(command))
    return _ask(tuple(command), tuple(sorted(env.items())), timeout_s)


@functools.cache
def _ask(command: tuple[str, ...], env: tuple[tuple[str, str], ...], timeout_s: float) -> SglangBuild:
    added = dict(env)
    check_executable(command, added.get("PATH"))
    if is_simulated(command):
        return _simulated(_run((*command, "--version"), added, timeout_s))
    if SERVER_MODULE in command and unwrap(command).inner:
        head = command[: command.index(SERVER_MODULE) - 1]
        probe = resources.files("launcher.version").joinpath("probe.py").read_text(encoding="utf-8")
        question = compose(head, ("-c", probe), added)
        return _answer(command, _run(question, added, timeout_s))
    if unwrap(command).wrapper is not Wrapper.NONE:
        raise UsageError(f"command: {_shown(command)} hides its interpreter, so it cannot be asked; {_TELL_US}")
    return _answer(command, _run(command, _asking(added), timeout_s))


def _asking(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python, before it becomes the server, answers the question instead."""
    with resources.as_file(resources.files("launcher.version").joinpath("ask")) as folder:
        paths = [str(folder), env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
        return {**env, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _run(words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> str:
    """Stdout and stderr together, whatever the exit code; at the limit the whole session is ended."""
    try:
        asked = subprocess.Popen(
            words,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"command: {_shown(words)} cannot be run: {error.strerror}") from None
    with asked:
        try:
            return asked.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(asked.pid, signal.SIGKILL)
            sentence = f"command: {_shown(words)} did not tell its version in {timeout_s:g} s; {_TELL_US}"
            raise UsageError(sentence) from None


def _answer(command: Sequence[str], output: str) -> SglangBuild:
    match = _ANSWER.search(output)
    if match is None:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
        why = "its Python has no SGLang" if "PackageNotFoundError" in output else redact_text(last.strip())
        raise UsageError(f"command: {_shown(command)} does not tell which SGLang it starts ({why}); {_TELL_US}")
    told = json.loads(match[1])
    values, switches = frozenset(told["values"]), frozenset(told["switches"])
    # A layout of the sources that the question does not understand: better no list than one with holes.
    whole = "mem-fraction-static" in values and "port" in values
    known = values | switches | frozenset(told["special"]) if whole else None
    return SglangBuild(
        told["version"],
        known,
        switches=switches,
        special=told["special"],
        aliases=frozenset(told["aliases"]),
        dests=told["dests"],
    )


def _simulated(output: str) -> SglangBuild:
    match = _PRINTED.search(output)
    if match is None:
        raise UsageError(f"command: the simulated engine did not tell its version: {output.strip()[-200:]}")
    return SglangBuild(match[1], simulated=True)


def _shown(words: Sequence[str]) -> str:
    line = redact_text(" ".join(words[:6]))
    return f"`{line[:120]}{'...' if len(words) > 6 or len(line) > 120 else ''}`"
