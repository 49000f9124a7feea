"""kvtop on a real SGLang under load: its figures are those of the server's own log, live and replayed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.clock import WallClock
from launcher.logs import LogFollower
from launcher.logs.batch import BatchLine, Phase
from launcher.server import StartLimits, launch
from tui.build import SnapshotBuilder
from tui.cli import run
from tui.collector import Collector
from tui.record import Recorder
from tui.settings import Settings
from tui.snapshot import Snapshot

pytestmark = pytest.mark.sglang

CLIENTS = 8
WATCHED_S = 25.0
READ_EVERY_S = 0.5


async def load(url: str, until: asyncio.Event) -> None:
    """Closed-loop clients with prompts and answers of 60 to 200 tokens."""

    async def client(http: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not until.is_set():
            turn += 1
            prompt = [3 + (number * 7919 + turn * 104729 + place * 31) % 200 for place in range(60 + 10 * number)]
            sampling = {"max_new_tokens": 60 + 20 * number, "ignore_eos": True}
            answer = await http.post("/generate", json={"input_ids": prompt, "sampling_params": sampling})
            answer.raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        await asyncio.gather(*(client(http, number) for number in range(CLIENTS)))


def watch(url: str, recording: Path) -> list[Snapshot]:
    """Snapshots of `WATCHED_S`, recorded on the way."""
    collector = Collector(Settings(urls=(url,), interval_s=READ_EVERY_S), None, with_study=False)
    builder, recorder, shown = SnapshotBuilder(READ_EVERY_S), Recorder(recording, READ_EVERY_S), []
    collector.start()
    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        time.sleep(READ_EVERY_S)
        frame = collector.frame()
        recorder.write(frame)
        shown.append(builder.add(frame))
    collector.stop()
    recorder.close()
    return shown


async def test_figures_are_those_of_the_log_and_replay_shows_the_same(
    cpu_sglang: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = cpu_sglang.request(tmp_path / "server.log")
    url, recording = f"http://127.0.0.1:{request.port}", tmp_path / "run.jsonl.gz"
    server = await launch(request, WallClock())
    try:
        await server.wait_ready(StartLimits(quiet_s=120, hard_s=300))
        done = asyncio.Event()
        clients = asyncio.create_task(load(url, done))
        shown = await asyncio.to_thread(watch, url, recording)
        done.set()
        await clients
    finally:
        await server.stop()
    log = request.log_path.read_text("utf-8", "replace")
    assert_figures_are_of_the_log(shown, log)
    assert_rates_are_of_the_log(shown[-1], log)
    assert run(["--replay", str(recording), "--json"], {"HOME": str(tmp_path)}) == 0
    assert json.loads(capsys.readouterr().out)["servers"][0]["rates"] == plain_rates(shown[-1])


def decode_lines(log: str) -> list[BatchLine]:
    events = LogFollower().feed(log)
    return [event for event in events if isinstance(event, BatchLine) and event.phase is Phase.DECODE]


def assert_figures_are_of_the_log(shown: list[Snapshot], log: str) -> None:
    """SGLang sets its gauges where it logs a batch: what was shown must be what a decode line says."""
    told = {round(line.gen_tokens_per_s or 0.0, 2) for line in decode_lines(log)} | {0.0}
    rates = [s.servers[0].pool.gen_tokens_per_s for s in shown if s.servers and s.servers[0].ranks]
    known = [round(rate, 2) for rate in rates if rate is not None]
    assert len(known) > WATCHED_S
    assert set(known) <= told


def assert_rates_are_of_the_log(last: Snapshot, log: str) -> None:
    """The counter of decoded tokens against the gen rates of the last lines, within the spread of those."""
    recent = [line.gen_tokens_per_s for line in decode_lines(log)[-40:] if line.gen_tokens_per_s]
    (server,) = last.servers
    assert server.rates.gen_tokens_per_s is not None
    assert min(recent) * 0.8 <= server.rates.gen_tokens_per_s <= max(recent) * 1.2
    assert server.rates.completion_tokens_per_s is not None
    assert server.rates.completion_tokens_per_s == pytest.approx(server.rates.gen_tokens_per_s, rel=0.5)
    assert server.pool.capacity_tokens == 4096


def plain_rates(snapshot: Snapshot) -> object:
    from tui.once import plain

    return json.loads(json.dumps(plain(snapshot.servers[0].rates)))
