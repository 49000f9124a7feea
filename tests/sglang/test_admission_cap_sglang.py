"""An open loop on a real SGLang: the server itself is held to the level's requests, and gets its own cap back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from launcher.clock import WallClock
from launcher.observe.read import ServerReader
from launcher.server import StartLimits, launch
from tuner.measure.live import measure_level
from tuner.steady import Moment
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import load_workload

pytestmark = pytest.mark.sglang

CAP = 2


def caps(url: str) -> list[int]:
    states = httpx.get(f"{url}/server_info", timeout=20).json()["internal_states"]
    return [state["pp_max_micro_batch_size"] for state in states]


async def test_arrivals_wait_in_the_server_whose_cap_is_the_level(cpu_sglang: Any, tmp_path: Path) -> None:
    request = cpu_sglang.request(tmp_path / "server.log")
    server, seen = await launch(request, WallClock()), list[Moment]()
    try:
        await server.wait_ready(StartLimits(quiet_s=120, hard_s=300))
        before = caps(server.url)
        with ServerReader(server.url) as reader:
            result = await measure_level(
                server.url,
                load_workload("random:in=40,out=100@40/s", seed=1),
                CAP,
                LevelLimits(20.0),
                WallClock(),
                gpus=None,
                reader=reader,
                is_dead=server.poll,
                on_moment=seen.append,
            )
        assert caps(server.url) == before
    finally:
        await server.stop()
    assert isinstance(result, LevelResult)
    assert result.admission_cap == CAP < before[0]
    running = [rank.running_requests or 0 for moment in seen if moment.server for rank in moment.server.ranks]
    assert max(running) == CAP
    assert result.queued_requests is not None
    assert result.queued_requests > CAP
