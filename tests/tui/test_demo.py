"""--demo, and what kvtop says of simulated servers that go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from launcher.nvml import open_gpus
from launcher.ports import free_port
from tui.build import SnapshotBuilder
from tui.cli import run
from tui.collector import Collector
from tui.demo import child, server_argv, sweep, wait_until_ready
from tui.discover import local_servers
from tui.settings import Settings
from tui.snapshot import Snapshot

WITHIN_S = 40.0


def test_the_demo_shows_a_server_under_load(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--demo", "--json", "--window", "3"], {"HOME": str(tmp_path)}) == 0
    document = json.loads(capsys.readouterr().out)
    (server,) = document["servers"]
    assert server["facts"]["simulated"] is True
    assert server["running_requests"] > 0
    assert len(document["gpus"]) == 8
    for gpu in document["gpus"]:
        assert gpu["server_url"] == server["url"]
        assert sum(gpu["memory_parts"].values()) == gpu["memory_total_bytes"]
        assert gpu["memory_parts"]["weights_bytes"] == pytest.approx(72.37 * 2**30, rel=0.01)


def test_what_a_killed_demo_has_left_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    dead, living = tmp_path / f"kvtop-demo-{process.pid}-abc", tmp_path / f"kvtop-demo-{os.getpid()}-abc"
    for left in (dead, living, tmp_path / "kvtop-demo-notes-1"):
        left.mkdir()
    sweep(tmp_path)
    assert {left.name for left in tmp_path.iterdir()} == {living.name, "kvtop-demo-notes-1"}


def test_nothing_of_the_demo_outlives_a_killed_kvtop(tmp_path: Path) -> None:
    program = (
        "import time\nfrom tui.demo import demo_box\nwith demo_box(clients=4) as box:\n"
        "    print(box.urls[0], flush=True)\n    time.sleep(60)"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert any(server.url == url for server in local_servers())
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + WITHIN_S
    while any(server.url == url for server in local_servers()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def watching(directory: Path, *further: str) -> Iterator[Callable[[Callable[[Snapshot], bool]], Snapshot]]:
    """A simulated server at sixtyfold speed with clients; yields "watch until"."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        argv = [*server_argv(directory, port), "--speed", "60", *further]
        server = stack.enter_context(child(argv, directory / "server.log"))
        wait_until_ready(server, port, directory / "server.log")
        stack.enter_context(child([sys.executable, "-m", "tui.demo.clients", url, "12"], directory / "clients.log"))
        settings = Settings(urls=(url,), interval_s=0.5, gpu_source=f"simulated:{directory}")
        collector = Collector(settings, open_gpus, with_study=False)
        collector.start()
        stack.callback(collector.stop)
        builder = SnapshotBuilder(settings.interval_s)

        def until(seen: Callable[[Snapshot], bool]) -> Snapshot:
            deadline = time.monotonic() + WITHIN_S
            while not seen(snapshot := builder.add(collector.frame())):
                assert time.monotonic() < deadline, snapshot.findings
                time.sleep(0.3)
            return snapshot

        yield until


def rules(snapshot: Snapshot) -> set[str]:
    return {finding.rule for finding in snapshot.findings}


def test_a_slow_gpu_a_stranger_and_then_a_hang_are_told_and_rates_are_of_the_simulated_clock(tmp_path: Path) -> None:
    """The counters' differences agree with the server's own figure, however fast its clock runs."""

    def seen_all(seen: Snapshot) -> bool:
        finished = any(s.rates.completion_tokens_per_s and s.pool.gen_tokens_per_s for s in seen.servers)
        return finished and {"slow_gpu", "stranger"} <= rules(seen)

    faults = ("--fault", "slow-gpu:1.5", "--fault", "leftover:3:4", "--fault", "stuck:300")
    with watching(tmp_path, *faults) as until:
        snapshot = until(seen_all)
        hung = until(lambda seen: "hung" in rules(seen))
    assert hung.servers[0].problem is None
    assert hung.findings[0].rule == "hung"
    (server,) = snapshot.servers
    stranger = next(finding for finding in snapshot.findings if finding.rule == "stranger")
    assert stranger.gpu_index == 3
    assert "holds 4.0 GiB of GPU 3" in stranger.evidence
    assert server.facts.clock_speed == 60.0
    assert server.rates.gen_tokens_per_s == pytest.approx(server.pool.gen_tokens_per_s, rel=0.6)
