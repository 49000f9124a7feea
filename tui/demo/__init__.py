"""`kvtop --demo`: a simulated server with clients, in a temporary directory, ended with kvtop whatever happens.

The server is the field report's (Kimi-K2.5 on eight 96 GB cards, 150 clients), in real time; only its start-up is
shortened. Everything it shows is labelled as simulated.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tui.errors import DemoError

PRESET = "kimi-k2.5-8x-rtx-pro-6000"
MODEL = "moonshotai/Kimi-K2.5"
CLIENTS = 150
FLAGS = (
    "--mem-fraction-static", "0.88", "--kv-cache-dtype", "bfloat16", "--tp-size", "8",
    "--enable-hierarchical-cache", "--hicache-size", "48", "--enable-metrics",
)  # fmt: skip
START_UP_S = {
    "import_s": 0.3,
    "distributed_s": 0.3,
    "weights_s": 1.0,
    "decode_graphs_s": 0.5,
    "warm_up_s": 0.2,
    "pin_s_per_gb": 0.0,
    "stop_s": 0.2,
    "memory_back_s": 0.2,
}
READY_WITHIN_S = 30.0
PREFIX = "kvtop-demo-"
"""Of temporary directories; the pid of the kvtop that made it follows."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class DemoBox:
    """Where the demo is."""

    urls: tuple[str, ...]
    gpu_source: str


@contextlib.contextmanager
def demo_box(clients: int = CLIENTS) -> Iterator[DemoBox]:
    """A ready server under load; DemoError if it does not start. Both processes are gone when it is left."""
    from launcher.ports import free_port

    port = free_port()
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder, contextlib.ExitStack() as children:
        directory = Path(folder)
        log = directory / "server.log"
        server = children.enter_context(child(server_argv(directory, port), log))
        wait_until_ready(server, port, log)
        url = f"http://127.0.0.1:{port}"
        argv = [sys.executable, "-m", "tui.demo.clients", url, str(clients)]
        children.enter_context(child(argv, directory / "clients.log"))
        yield DemoBox((url,), f"simulated:{directory}")


def sweep(parent: Path) -> None:
    """Remove the directories of demos that were killed; another user's cannot be removed and are left."""
    for left in parent.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


def server_argv(directory: Path, port: int) -> list[str]:
    """The command of a simulated server whose GPUs and preset live in `directory`."""
    preset = directory / "preset.yaml"
    preset.write_text(short_preset(), encoding="utf-8")
    own = ["--preset", str(preset), "--gpu-state", str(directory)]
    where = ["--model-path", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, "-m", "launcher.simulated", *own, *where, *FLAGS]


def short_preset() -> str:
    """The preset as YAML, with a start-up of seconds."""
    import yaml

    from launcher.simulated.presets import load_preset

    raw = load_preset(PRESET).model_dump(mode="json")
    raw["start_up"].update(START_UP_S)
    return str(yaml.safe_dump(raw))


@contextlib.contextmanager
def child(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a process group of its own. It dies with us (PR_SET_PDEATHSIG) even if we are killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=_die_with_parent,
        )
    try:
        yield process
    finally:
        _end(process)


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, and then end the whole group; it is ours from the first process to the last."""
    process.terminate()
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it listens; DemoError with its last line if it ends before."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return
        time.sleep(0.1)
    last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
    raise DemoError(f"the simulated engine did not start: {last[0] if last else 'it said nothing'}")
