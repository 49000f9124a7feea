"""The contest on a recording: rows written by hand, of a box whose arithmetic is easy to follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.contest.__main__ import OWN_RECORDING
from bench.contest.ours import Kvtune
from bench.contest.race import run_study
from bench.contest.recorded.case import RecordedCase, recorded_case
from bench.contest.recorded.world import RecordedWorld
from bench.contest.report import RECORDED, print_figures
from bench.contest.rivals import available_rivals, default_setting
from bench.h200.truth import plain
from launcher.errors import UsageError
from launcher.failure import Culprit, Direction, Failure, FailureNumbers, Kind, Stage
from launcher.timeline import MemorySeen, Timeline
from tuner.testbed import Started
from tuner.trial import Interval, LevelEnd, LevelResult, Setting

BEFORE_GIB, WEIGHTS_GIB, OVERHEAD_GIB, STEP_GIB = 100.0, 40.0, 1.0, 2.0
TOKEN_BYTES = 2 * 32 * 8 * 2 * 128
IN_FLIGHT = 1000.0
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 150_000,
}
DESCRIPTION = """\
name: by-hand recorded
model: config.json
gpu-memory-gib: 101.5
workload: random:in=700,out=600,cv=0.3
space:
  mem-fraction-static: [0.50, 0.99]
  concurrency: [16, 512]
"""
UNSAID = FailureNumbers()
BOUNDARY = 1 - (OVERHEAD_GIB + STEP_GIB) / BEFORE_GIB


def capacity(fraction: float) -> int:
    return int((fraction * BEFORE_GIB - WEIGHTS_GIB) * 2**30 / TOKEN_BYTES)


def headroom_gib(fraction: float) -> float:
    return (1 - fraction) * BEFORE_GIB - OVERHEAD_GIB


def start_row(fraction: float, failure: Failure | None = None, start_s: float = 60.0) -> dict[str, Any]:
    memory = MemorySeen(
        before_weights_gib=BEFORE_GIB,
        weights_gib=WEIGHTS_GIB,
        kv_cache_gib=fraction * BEFORE_GIB - WEIGHTS_GIB,
        capacity_tokens=capacity(fraction),
        kv_cache_dtype="bfloat16",
        headroom_gib=None if failure else headroom_gib(fraction),
    )
    started = Started(Timeline(memory=memory, ready_s=None if failure else start_s), failure, 1.0, start_s)
    return {"row": "start", "mem_fraction_static": fraction, "hicache_size_gb": 0, **plain(started)}


def level_row(
    fraction: float, concurrency: int, rate: float, queued: float = 0.0, half: float = 0.02
) -> dict[str, Any]:
    level = LevelResult(
        concurrency=concurrency,
        end=LevelEnd.NARROW,
        completion_rate=Interval(rate, rate * (1 - half), rate * (1 + half)),
        measured_s=60.0,
        spent_s=80.0,
        responses_per_s=rate / 600,
        finished_requests=200,
        running_requests=concurrency - queued,
        queued_requests=queued,
        tokens_in_flight_each=IN_FLIGHT,
        headroom_min_gib={0: headroom_gib(fraction) - STEP_GIB},
    )
    return {"row": "level", "mem_fraction_static": fraction, "hicache_size_gb": 0, **plain(level)}


def oom(stage: Stage, numbers: FailureNumbers = UNSAID) -> Failure:
    kind = Kind.GPU_OOM_RUNTIME if stage is Stage.FIRST_PREFILL else Kind.GPU_OOM_STARTUP
    return Failure(kind, stage, Direction.DOWN, Culprit.CONFIGURATION, False, "GPU memory ran out", numbers=numbers)


def death_row(fraction: float) -> dict[str, Any]:
    died = oom(Stage.FIRST_PREFILL, FailureNumbers(tried_gib=1.5, gpu_free_gib=0.8))
    return {"row": "death", "mem_fraction_static": fraction, "hicache_size_gb": 0, **plain(died)}


def end_row(fraction: float, stop_s: float) -> dict[str, Any]:
    return {"row": "end", "mem_fraction_static": fraction, "hicache_size_gb": 0, "how": "term", "stop_s": stop_s}


ROWS = (
    start_row(0.6, start_s=130.0),
    {"row": "parts", "mem_fraction_static": 0.6, "nvml_used_bytes": [1]},
    level_row(0.6, 64, 1000.0),
    level_row(0.6, 256, 1500.0, queued=100.0),
    end_row(0.6, 4.0),
    start_row(0.9),
    level_row(0.9, 64, 1100.0),
    level_row(0.9, 256, 2500.0),
    level_row(0.9, 384, 3000.0),
    end_row(0.9, 6.0),
    start_row(0.975),
    death_row(0.975),
    start_row(0.985, oom(Stage.GRAPH_CAPTURE), start_s=33.0),
)


def written(folder: Path, rows: Sequence[object] = ROWS, description: str = DESCRIPTION) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "by-hand.yaml").write_text(description)
    table = folder / "by-hand.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return table


@pytest.fixture
def case(tmp_path: Path) -> RecordedCase:
    return recorded_case(written(tmp_path))


@pytest.fixture
def world(case: RecordedCase) -> RecordedWorld:
    return RecordedWorld(case, seed=1)


def test_a_start_at_any_fraction_shows_the_recorded_arithmetic(world: RecordedWorld) -> None:
    started = world.start(Setting(0.75, "bfloat16"))
    assert started.failure is None
    assert started.timeline is not None
    memory = started.timeline.memory
    assert memory.before_weights_gib == BEFORE_GIB
    assert memory.capacity_tokens == pytest.approx(capacity(0.75), rel=1e-4)
    assert memory.headroom_gib == pytest.approx(headroom_gib(0.75), abs=0.01)
    assert memory.bytes_per_token == pytest.approx(TOKEN_BYTES, rel=1e-3)


def test_a_recorded_fraction_shows_what_was_recorded(world: RecordedWorld) -> None:
    started = world.start(Setting(0.9, "bfloat16"))
    assert started.timeline is not None
    assert started.timeline.memory.capacity_tokens == pytest.approx(capacity(0.9), abs=1)
    level = world.measure(384)
    assert isinstance(level, LevelResult)
    assert level.headroom_min_gib[0] == pytest.approx(headroom_gib(0.9) - STEP_GIB)


@pytest.mark.parametrize(("fraction", "lives"), [(BOUNDARY - 0.001, True), (BOUNDARY + 0.001, False), (0.985, False)])
def test_the_worst_recorded_step_bounds_what_lives(world: RecordedWorld, fraction: float, lives: bool) -> None:
    setting = Setting(fraction, "bfloat16")
    assert (world.true_rate(setting, 64) > 0) == lives
    started = world.start(setting)
    assert (started.failure is None and isinstance(world.measure(64), LevelResult)) == lives


def test_a_death_is_the_nearest_recorded_one(world: RecordedWorld) -> None:
    under_load = world.start(Setting(0.972, "bfloat16"))
    assert under_load.failure is None
    died = world.measure(64)
    assert isinstance(died, Failure)
    assert died.stage is Stage.FIRST_PREFILL
    assert died.numbers.gpu_free_gib == pytest.approx(0.8 + 0.3)
    at_start_up = world.start(Setting(0.99, "bfloat16"))
    assert at_start_up.failure is not None
    assert at_start_up.failure.stage is Stage.GRAPH_CAPTURE
    assert at_start_up.start_s == 33.0
    assert at_start_up.timeline is not None
    assert at_start_up.timeline.memory.headroom_gib is None


def test_what_was_seen_to_die_raises_the_need(tmp_path: Path) -> None:
    rows = [*ROWS, start_row(0.955), death_row(0.955)]
    world = RecordedWorld(recorded_case(written(tmp_path, rows)), seed=1)
    assert world.true_rate(Setting(0.955, "bfloat16"), 64) == 0.0
    assert world.true_rate(Setting(0.954, "bfloat16"), 64) > 0.0


def test_levels_without_a_queue_are_repetitions_of_each_other(world: RecordedWorld) -> None:
    fewest_tokens, most_tokens = Setting(0.6, "bfloat16"), Setting(0.9, "bfloat16")
    assert world.true_rate(fewest_tokens, 64) == pytest.approx(world.true_rate(most_tokens, 64))
    assert 1000 < world.true_rate(most_tokens, 64) < 1100


def test_rates_lie_between_the_recorded_points(world: RecordedWorld) -> None:
    large = Setting(0.9, "bfloat16")
    assert world.true_rate(large, 256) == pytest.approx(2500)
    assert world.true_rate(large, 256) < world.true_rate(large, 300) < world.true_rate(large, 384)
    assert world.oracle() == pytest.approx(3000)


def test_a_full_pool_shows_its_full_house_and_a_longer_queue(world: RecordedWorld) -> None:
    small = Setting(0.6, "bfloat16")
    assert [world.true_rate(small, clients) for clients in (156, 256, 512)] == pytest.approx([1500] * 3)
    assert world.true_rate(small, 150) < 1500
    world.start(small)
    level = world.measure(512)
    assert isinstance(level, LevelResult)
    assert level.queued_requests == pytest.approx(512 - 156)


def test_another_pools_full_house_lies_between_the_recorded_ones(world: RecordedWorld) -> None:
    between = Setting(0.75, "bfloat16")
    assert world.true_rate(between, 512) == pytest.approx(2250, rel=0.01)
    assert world.true_rate(between, 64) == pytest.approx(world.true_rate(Setting(0.9, "bfloat16"), 64))


def test_noise_is_as_wide_as_the_recorded_interval(case: RecordedCase) -> None:
    def rates(limit_s: float | None) -> list[float]:
        levels = []
        for seed in range(300):
            world = RecordedWorld(case, seed)
            world.start(Setting(0.9, "bfloat16"))
            level = world.measure(384, limit_s)
            assert isinstance(level, LevelResult)
            assert level.completion_rate.half_width == pytest.approx(
                0.02 * level.completion_rate.value * (1 if limit_s is None else 2)
            )
            levels.append(level.completion_rate.value)
        return levels

    whole, cut = rates(None), rates(20.0)
    assert spread(whole) == pytest.approx(3000 * 0.02 / 1.96, rel=0.2)
    assert spread(cut) == pytest.approx(2 * spread(whole), rel=0.2)


def spread(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)


def test_seconds_are_recorded_ones_and_the_first_start_is_cold(world: RecordedWorld) -> None:
    setting = Setting(0.6, "bfloat16")
    assert [world.start(setting).start_s for _ in range(3)] == [130.0, 60.0, 60.0]
    assert world.stop() == 5.0


def test_a_level_that_says_nothing_is_left_out(tmp_path: Path) -> None:
    blind = level_row(0.9, 512, 9000.0, half=2.0)
    case = recorded_case(written(tmp_path, [*ROWS[:9], blind, *ROWS[9:]]))
    assert case.rates.measured_levels == 5
    assert "between 5 measured points of 2 starts" in case.says_what_it_is()
    assert RecordedWorld(case, 1).oracle() == pytest.approx(3000)


def test_every_method_runs_on_a_recording(case: RecordedCase, capsys: pytest.CaptureFixture[str]) -> None:
    oracle = RecordedWorld(case, 1).oracle()
    assert default_setting(case).mem_fraction_static == pytest.approx(case.prior.default_fraction())
    for rival in available_rivals():
        proposal = rival(case, 1).propose([], 7200)
        assert proposal is not None
    scores = [
        run_study(method, RecordedWorld(case, 1), 1, oracle)
        for method in (Kvtune(case, 1), black_box(case), available_rivals()[1](case, 1))
    ]
    assert scores[0].final_share >= 0.95
    print_figures(scores, RECORDED)
    shown = capsys.readouterr().out
    assert "figure relaunches_to_97_p50_recorded " in shown
    assert "figure crashes_per_study_recorded_best_opponent " in shown


def black_box(case: RecordedCase) -> Kvtune:
    return Kvtune(case, 1, black_box=True, name="kvtune --black-box")


@pytest.mark.parametrize(
    ("rows", "description", "fault"),
    [
        (ROWS, DESCRIPTION.replace("workload", "workloads"), "workload"),
        (ROWS, DESCRIPTION.replace("[0.50, 0.99]", "[0.50, 0.99]\n  kv-cache-dtype: fp8_e4m3"), "can be searched"),
        (ROWS[:10], DESCRIPTION, "one that died"),
        (ROWS[2:], DESCRIPTION, "line 1: .*before the first start"),
        ([*ROWS, {"row": "start"}], DESCRIPTION, "line 14"),
        ([{**ROWS[0], "hicache_size_gb": 20}], DESCRIPTION, "without HiCache"),
        ([*ROWS, "text"], DESCRIPTION, "line 14"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, rows: Sequence[object], description: str, fault: str
) -> None:
    with pytest.raises(UsageError, match=fault):
        recorded_case(written(tmp_path, rows, description))


@pytest.mark.parametrize(
    ("fraction", "lives"), [(0.80, True), (0.903, True), (0.97, True), (0.98, False), (0.985, False), (0.995, False)]
)
def test_the_own_recording_ends_where_real_servers_died(fraction: float, lives: bool) -> None:
    assert recorded_case(OWN_RECORDING).memory.lives(fraction) == lives
