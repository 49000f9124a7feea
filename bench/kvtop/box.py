"""Two simulated servers under load and eight simulated GPUs, for kvtop to watch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.ports import free_port
from tui.demo import child, server_argv, wait_until_ready

CLIENTS = (150, 90)


@dataclass(frozen=True, slots=True)
class WatchedBox:
    """What kvtop is pointed at. The second server runs elsewhere: no GPU of this box is its own."""

    urls: tuple[str, ...]
    gpu_source: str

    @property
    def arguments(self) -> tuple[str, ...]:
        named = [word for url in self.urls for word in ("--url", url)]
        return (*named, "--gpus", self.gpu_source)


@contextlib.contextmanager
def watched_box(directory: Path) -> Iterator[WatchedBox]:
    urls = []
    with contextlib.ExitStack() as children:
        for number, clients in enumerate(CLIENTS):
            place = directory / f"server-{number}"
            place.mkdir()
            port = free_port()
            server = children.enter_context(child(server_argv(place, port), place / "server.log"))
            wait_until_ready(server, port, place / "server.log")
            urls.append(f"http://127.0.0.1:{port}")
            argv = [sys.executable, "-m", "tui.demo.clients", urls[-1], str(clients)]
            children.enter_context(child(argv, place / "clients.log"))
        yield WatchedBox(tuple(urls), f"simulated:{directory / 'server-0'}")
