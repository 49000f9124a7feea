"""Containers that a launch made: known by a label, since their processes are the container runtime's and not ours.

The runner's client passes SIGTERM on, but killing the client leaves the container running.
"""

from __future__ import annotations

import shlex
import subprocess

from launcher.command import CONTAINER_LABEL

_TIMEOUT_S = 30.0


def end_containers(runner: str, token: str) -> tuple[str, ...]:
    """Stop every container with the launch's label; what is left, as phrases for a person. Blocks for seconds.

    `runner` is the command line of the runner up to its `run` word: "docker", "sudo podman".
    """
    for word in ("stop", "kill"):
        running = _running(runner, token)
        if not running:
            return ()
        _ask(runner, word, *running)
    return tuple(f"container {name} does not end" for name in _running(runner, token))


def _running(runner: str, token: str) -> tuple[str, ...]:
    return tuple(_ask(runner, "ps", "-q", "--filter", f"label={CONTAINER_LABEL}={token}").split())


def _ask(runner: str, *words: str) -> str:
    """Stdout; empty when the runner fails or hangs, for then the port and the GPUs have to tell."""
    try:
        done = subprocess.run(
            [*shlex.split(runner), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
