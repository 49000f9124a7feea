"""The launch command: what the user wrote, and what has to be added to it so that it starts one given server.

A command is `python -m sglang.launch_server`, `sglang serve`, a script of the user's, or any of them behind
a wrapper. Most wrappers (numactl, srun, env, a script) pass words and environment on as they are. Two kinds
do not: `ssh` joins its words and lets a remote shell split them again, and neither ssh nor a container
runner passes the environment on.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from launcher.errors import UsageError
from launcher.process import TOKEN_VARIABLE

SERVER_MODULE = "sglang.launch_server"
SIMULATED_MODULE = "launcher.simulated"
CONTAINER_LABEL = "kvtune.token"
"""A container that a launch makes carries the launch's token under this label."""

_CONTAINER_RUNNERS = frozenset({"docker", "podman", "nerdctl"})
_SSH_OPTIONS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")


class Wrapper(StrEnum):
    """Who passes the words and the environment on."""

    NONE = "none"
    """The same machine, the same user: words and environment arrive as they are (scripts, numactl, srun,
    env)."""
    CONTAINER = "container"
    SSH = "ssh"


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A command split where the wrapper ends: `outer` is the wrapper with its options, `inner` what it
    runs."""

    wrapper: Wrapper
    outer: tuple[str, ...]
    inner: tuple[str, ...]


def split_command(command: str | Sequence[str]) -> tuple[str, ...]:
    """A command as words. Raises UsageError when it is empty or its quotes do not match."""
    try:
        words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except ValueError as error:
        raise UsageError(f"command: {command!r} cannot be split into words: {error}") from None
    if not words or not words[0]:
        raise UsageError("command: it is empty; SGLang's own is `python -m sglang.launch_server`")
    return words


def unwrap(command: Sequence[str]) -> Wrapped:
    """Find the wrapper that needs care, if there is one. A wrapper inside a script cannot be seen, nor need
    it be."""
    words = tuple(command)
    for index, word in enumerate(words):
        name = PurePath(word).name
        if word == "-m" or name.startswith("python"):
            break
        if name == "ssh":
            end = _ssh_destination(words, index + 1) + 1
            return Wrapped(Wrapper.SSH, words[:end], words[end:])
        if name in _CONTAINER_RUNNERS and {"run", "exec"} & set(words[index + 1 : index + 3]):
            end = next(i for i in range(index + 1, len(words)) if words[i] in ("run", "exec")) + 1
            return Wrapped(Wrapper.CONTAINER, words[:end], words[end:])
    return Wrapped(Wrapper.NONE, (), words)


def compose(command: Sequence[str], argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The words to start: the command, the server's `argv`, and the variables of `env` where they do not
    pass alone.

    A container runner is told to hand on the variables by name (their values stay out of the process list);
    the remote shell of ssh has to be given the values.
    """
    wrapped = unwrap(command)
    if wrapped.wrapper is Wrapper.CONTAINER:
        passed = tuple(word for name in env for word in ("-e", name))
        labels = ("--label", f"{CONTAINER_LABEL}={env.get(TOKEN_VARIABLE, '')}") if wrapped.outer[-1] == "run" else ()
        return (*wrapped.outer, *passed, *labels, *wrapped.inner, *argv)
    if wrapped.wrapper is Wrapper.SSH:
        settings = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
        return (*wrapped.outer, f"{settings}{' '.join(wrapped.inner)} {shlex.join(argv)}")
    return (*command, *argv)


def check_executable(command: Sequence[str], path: str | None, key: str = "command") -> None:
    """Raises UsageError when the first word is no program. `path` is the PATH it will be started with, `key` what
    named the command."""
    if shutil.which(command[0], path=path) is None:
        raise UsageError(f"{key}: there is no program {command[0]!r}; give its full path or set PATH")


def flag_value(command: Sequence[str], name: str) -> str | None:
    """The value that the command's own words give a flag (`--name value` or `--name=value`), the last one
    counting."""
    found = None
    for index, word in enumerate(command):
        if word == f"--{name}" and index + 1 < len(command):
            found = command[index + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def is_simulated(command: Sequence[str]) -> bool:
    """Whether this starts kvtune's own simulated engine."""
    return SIMULATED_MODULE in command


def _ssh_destination(words: Sequence[str], index: int) -> int:
    """The index of ssh's destination: its first word that is neither an option nor an option's value."""
    while index < len(words) and words[index].startswith("-"):
        option = words[index]
        index += 2 if len(option) == 2 and option[1] in _SSH_OPTIONS_WITH_VALUE else 1
    return index
