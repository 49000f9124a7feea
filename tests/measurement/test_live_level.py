"""A level over HTTP, on a toy server at a scaled clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.clock import WallClock
from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from tuner.measure.live import ServerDied, measure_level
from tuner.steady import Moment, Slo
from tuner.testbed import LevelLimits
from tuner.trial import LevelEnd, LevelResult
from tuner.workload import Workload, load_workload

CRASH = Failure(
    Kind.CUDA_CRASH, Stage.UNDER_LOAD, Direction.NONE, Culprit.SERVER_BUG, retry=True, sentence="it crashed"
)


async def measure(toy: Any, workload: Workload, speed: float = 4.0, **options: Any) -> LevelResult | ServerDied:
    defaults: dict[str, Any] = {"gpus": None, "reader": toy, "is_dead": lambda: None}
    limits = LevelLimits(budget_s=5.0)
    return await measure_level(toy.url, workload, 4, limits, WallClock(speed), **{**defaults, **options})


async def test_a_level_ends_with_its_numbers_and_an_idle_server(toy_server: Any) -> None:
    moments: list[Moment] = []
    result = await measure(toy_server, load_workload("random:in=5,out=8", seed=1), on_moment=moments.append)
    assert isinstance(result, LevelResult)
    assert result.end is LevelEnd.TIME
    assert result.finished_requests > 4
    assert result.unfinished_requests == 4
    assert result.ttft_s is not None
    assert result.itl_s is not None
    assert moments[-1].generated_tokens == max(moment.generated_tokens or 0 for moment in moments) > 0
    assert toy_server.running == 0
    assert toy_server.flushes == 0


async def test_beyond_the_streaming_speed_the_servers_counter_is_read(toy_server: Any) -> None:
    moments: list[Moment] = []
    toy_server.token_wall_s = 0.002
    workload = load_workload("random:in=5,out=8", seed=1)
    await measure(toy_server, workload, speed=20.0, on_moment=moments.append)
    assert all(body["stream"] is False for body in toy_server.bodies)
    assert (moments[-1].generated_tokens or 0) > 0


async def test_an_slo_judges_every_answer_at_any_speed(toy_server: Any) -> None:
    toy_server.token_wall_s = 0.001
    workload = load_workload("random:in=5,out=8", seed=1)
    result = await measure(toy_server, workload, speed=10.0, slo=Slo(ttft_p95_s=1e-6))
    assert isinstance(result, LevelResult)
    assert result.goodput_tokens_per_s == 0.0
    assert result.slo_attainment_share == 0.0


async def test_an_open_loop_runs_over_http(toy_server: Any) -> None:
    result = await measure(toy_server, load_workload("random:in=5,out=8@3/s", seed=1))
    assert isinstance(result, LevelResult)
    assert 5 <= result.finished_requests <= 40


async def test_a_dead_server_ends_the_level_with_its_failure(toy_server: Any) -> None:
    result = await measure(toy_server, load_workload("random:in=5,out=8", seed=1), is_dead=lambda: CRASH)
    assert isinstance(result, ServerDied)
    assert result.failure is CRASH


async def test_the_user_can_stop_a_level(toy_server: Any) -> None:
    result = await measure(toy_server, load_workload("random:in=5,out=8", seed=1), should_stop=lambda: True)
    assert isinstance(result, LevelResult)
    assert result.end is LevelEnd.STOPPED


async def test_errors_do_not_end_a_level(toy_server: Any) -> None:
    toy_server.fail_with = 500
    result = await measure(toy_server, load_workload("random:in=5,out=8", seed=1))
    assert isinstance(result, LevelResult)
    assert result.errors_by_kind["http_500"] >= 4
    assert result.completion_rate.value == 0


async def test_the_users_own_prompts_are_forgotten_between_levels(toy_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"prompt {at}", "max_tokens": 8}) for at in range(9)))
    workload = load_workload(path, seed=1)
    await measure(toy_server, workload)
    assert toy_server.flushes == 1
    assert all(request.output_tokens == 8 for request in workload.sample(9))  # learned from what finished
