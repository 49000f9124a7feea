"""The launcher's own readers on simulated logs: timelines, batches, and failures with the right verdict."""

from __future__ import annotations

import pytest

from launcher.config import FlagValue, ServerConfig
from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.failures import Evidence, classify
from launcher.logs import BatchLine, LogFollower, RetractionLine, Step, read_timeline
from launcher.simulated.box import VirtualBox
from launcher.simulated.events import Crashed, SimRequest
from launcher.simulated.logtext import Timed, Wording, runtime_line
from launcher.simulated.presets import load_preset

KIMI = load_preset("kimi-k2.5-8x-rtx-pro-6000")
QWEN = load_preset("qwen2.5-32b-1x-h200")


def config(fraction: float, dtype: str = "bfloat16", hicache_gb: int = 0, **flags: FlagValue) -> ServerConfig:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return ServerConfig("m", fraction, dtype, hicache_gb, {"tp-size": 8, **named})


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
def test_the_timeline_of_a_start(version: str) -> None:
    box = VirtualBox(KIMI, seed=2, version=version)
    begun = box.start(config(0.88, hicache_gb=40))
    assert begun.engine is not None
    plan = begun.engine.plan
    timeline = read_timeline(begun.log, begun.launched_unix_s)
    memory = timeline.memory
    assert timeline.ready_s == pytest.approx(begun.took_s, abs=2)
    assert memory.capacity_tokens == plan.capacity_tokens
    assert memory.before_weights_gib == pytest.approx(plan.load_begin_gib, abs=0.01)
    assert memory.weights_gib == pytest.approx(plan.weights_gib, abs=0.01)
    assert memory.headroom_gib == pytest.approx(plan.headroom_gib, abs=0.01)
    assert memory.bytes_per_token == pytest.approx(plan.bytes_per_token, rel=0.001)
    assert (memory.kv_cache_dtype, memory.hicache_host_gb) == ("bfloat16", 40.0)
    took = {span.stage: span.took_s for span in timeline.spans}
    assert took[Stage.WEIGHTS] == pytest.approx(KIMI.start_up.weights_s, rel=0.3)
    assert took[Stage.HOST_POOL] == pytest.approx(40 * KIMI.start_up.pin_s_per_gb, abs=3)


def test_fp8_is_read_from_the_log() -> None:
    log = VirtualBox(KIMI, seed=2).start(config(0.9, "fp8_e4m3")).log
    assert read_timeline(log).memory.kv_cache_dtype == "fp8_e4m3"


def judge(box: VirtualBox, asked: ServerConfig) -> Failure:
    begun = box.start(asked)
    assert begun.exit_code is not None
    failure = classify(Evidence(log=begun.log, exit_code=begun.exit_code))
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("asked", "kind", "stage", "direction"),
    [
        (config(0.70), Kind.GPU_OOM_STARTUP_KV, Stage.KV_POOL, Direction.UP),
        (config(0.96), Kind.GPU_OOM_GRAPH_CAPTURE, Stage.GRAPH_CAPTURE, Direction.DOWN),
        (config(0.999), Kind.GPU_OOM_STARTUP, Stage.KV_POOL, Direction.DOWN),
        (config(0.9, tp_size=4), Kind.GPU_OOM_WEIGHTS, Stage.WEIGHTS, Direction.NONE),
    ],
)
def test_gpu_memory_deaths(asked: ServerConfig, kind: Kind, stage: Stage, direction: Direction) -> None:
    failure = judge(VirtualBox(KIMI, seed=1), asked)
    assert (failure.kind, failure.stage) == (kind, stage)
    assert failure.mem_fraction_direction is direction
    assert failure.culprit is Culprit.CONFIGURATION


def test_the_minimum_fraction_is_read() -> None:
    failure = judge(VirtualBox(QWEN, seed=1), ServerConfig("m", 0.4))
    assert failure.numbers.minimum_mem_fraction == pytest.approx(0.4391)


def test_cublas_is_an_oom_of_the_capture() -> None:
    flags: dict[str, FlagValue] = {"disable-piecewise-cuda-graph": True}
    failure = judge(VirtualBox(QWEN, seed=1), ServerConfig("m", 0.995, flags=flags))
    assert failure.is_gpu_oom
    assert (failure.stage, failure.mem_fraction_direction) == (Stage.GRAPH_CAPTURE, Direction.DOWN)


@pytest.mark.parametrize(
    ("gb", "kind"), [(1300, Kind.HOST_OOM_HICACHE), (170, Kind.HOST_OOM_KILLED)]
)  # fmt: skip
def test_host_memory_deaths(gb: int, kind: Kind) -> None:
    failure = judge(VirtualBox(KIMI, seed=1), config(0.88, hicache_gb=gb))
    assert failure.kind is kind
    assert failure.mem_fraction_direction is Direction.NONE


def test_a_host_pool_smaller_than_the_device_pool_in_old_versions() -> None:
    failure = judge(VirtualBox(KIMI, seed=1, version="0.5.12"), config(0.88, hicache_gb=5))
    assert (failure.kind, failure.hicache_direction) == (Kind.CONFIG_ERROR, Direction.UP)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("leftover:2:20", Kind.GPU_BUSY_OTHER_PROCESS),
        ("port-taken", Kind.PORT_IN_USE),
        ("pin-fails", Kind.HOST_PIN_FAILED),
    ],
)
def test_faults_are_not_the_mem_fractions(fault: str, kind: Kind) -> None:
    failure = judge(VirtualBox(KIMI, seed=1, faults=[fault]), config(0.88, hicache_gb=20))
    assert failure.kind is kind
    assert failure.mem_fraction_direction is Direction.NONE


def crash(box: VirtualBox, asked: ServerConfig, prompt: int) -> tuple[str, Crashed]:
    """The whole log of a server that dies of one prompt."""
    begun = box.start(asked)
    assert begun.engine is not None
    begun.engine.submit(SimRequest("r", ((1, prompt),), 4000))
    for _ in range(20):
        for event in begun.engine.advance(begun.engine.now_s + 600):
            if isinstance(event, Crashed):
                return begun.log + event.log_text, event
    raise AssertionError("it lived")


def test_an_oom_under_load() -> None:
    flags: dict[str, FlagValue] = {"disable-piecewise-cuda-graph": True, "chunked-prefill-size": 16384}
    log, event = crash(VirtualBox(QWEN, seed=1), ServerConfig("m", 0.98, flags=flags), 20_000)
    failure = classify(Evidence(log=log, exit_code=event.exit_code))
    assert failure is not None
    assert (failure.kind, failure.mem_fraction_direction) == (Kind.GPU_OOM_RUNTIME, Direction.DOWN)
    assert failure.stage in (Stage.FIRST_PREFILL, Stage.UNDER_LOAD)
    assert failure.numbers.tried_gib == pytest.approx(1.69, abs=0.01)
    assert failure.numbers.gpu_free_gib == pytest.approx(1.06, abs=0.05)


def test_a_cuda_error_under_load_is_not_the_configurations() -> None:
    log, event = crash(VirtualBox(KIMI, seed=1, faults=["crash-after:1"]), config(0.88), 100)
    failure = classify(Evidence(log=log, exit_code=event.exit_code))
    assert failure is not None
    assert failure.kind is Kind.CUDA_CRASH
    assert not failure.teaches


def test_a_healthy_log_is_no_failure_and_its_lines_are_read() -> None:
    box = VirtualBox(KIMI, seed=1, record_log=True)
    asked = config(0.88, max_total_tokens=20_000, schedule_conservativeness=0.1)
    begun = box.start(asked)
    assert begun.engine is not None
    for number in range(40):
        begun.engine.submit(SimRequest(f"r{number}", ((number, 300 + 37 * number),), 400 + 60 * number))
    while begun.engine.gauges().counters.finished_requests < 40:
        begun.engine.advance(1e6)
    wording = Wording((0, 5, 17), 8)
    lines = [
        wording.stamp(begun.launched_unix_s + record.at_s, Timed(0.0, runtime_line(record), 0))
        for record in begun.engine.take_log()
    ]
    follower = LogFollower()
    events = follower.feed(begun.log + "\n".join(lines) + "\n")
    batches = [event for event in events if isinstance(event, BatchLine)]
    assert len(batches) + sum(isinstance(event, RetractionLine) for event in events) == len(lines)
    assert any(isinstance(event, RetractionLine) for event in events)
    assert all(batch.running_requests is not None and batch.token_usage_share is not None for batch in batches)
    assert any(milestone.step is Step.READY for milestone in follower.milestones)
    assert classify(Evidence(log=begun.log + "\n".join(lines), exit_code=None)) is None
