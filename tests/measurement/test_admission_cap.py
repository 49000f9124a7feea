"""The server's own cap, held for a level and given back."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.clock import WallClock
from tuner.load import LoadClient
from tuner.measure.cap import admission_cap
from tuner.measure.live import measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import load_workload


async def hold(url: str, requests: int | None) -> int | None:
    async with LoadClient(url, WallClock()) as client, admission_cap(client, requests) as held:
        return held


async def test_it_is_held_and_given_back(toy_server: Any) -> None:
    assert await hold(toy_server.url, 16) == 16
    assert toy_server.held_caps == [16, 64]


async def test_every_rank_has_its_share(toy_server: Any) -> None:
    toy_server.caps = [64, 64]
    assert await hold(toy_server.url, 17) == 16
    assert toy_server.held_caps == [8, 64]


@pytest.mark.parametrize(("caps", "takes"), [([64], False), ([8], True), ([], True)])
async def test_a_server_that_does_not_take_it_is_left_alone(toy_server: Any, caps: list[int], takes: bool) -> None:
    toy_server.caps, toy_server.takes_caps = caps, takes
    assert await hold(toy_server.url, 16) is None
    assert toy_server.held_caps == []


async def test_closed_loops_need_none(toy_server: Any) -> None:
    assert await hold(toy_server.url, None) is None
    assert toy_server.held_caps == []


@pytest.mark.parametrize(("takes", "held"), [(True, 4), (False, None)])
async def test_an_open_loop_is_held_back_by_the_server_else_by_the_clients(
    toy_server: Any, takes: bool, held: int | None
) -> None:
    toy_server.takes_caps = takes
    result = await measure_level(
        toy_server.url,
        load_workload("random:in=5,out=8@20/s", seed=1),
        4,
        LevelLimits(budget_s=4.0),
        WallClock(4.0),
        gpus=None,
        reader=toy_server,
        is_dead=lambda: None,
    )
    assert isinstance(result, LevelResult)
    assert result.concurrency == 4
    assert result.admission_cap == held
    assert toy_server.caps == [64]
