"""VirtualBox: starts, deaths by stage, stops, faults and GPUs, in virtual time."""

from __future__ import annotations

import pytest

from launcher.config import FlagValue, ServerConfig
from launcher.errors import UsageError
from launcher.simulated.box import BoxStart, VirtualBox
from launcher.simulated.events import Finished, FirstToken, SimRequest
from launcher.simulated.faults import parse_faults
from launcher.simulated.presets import load_preset

KIMI = load_preset("kimi-k2.5-8x-rtx-pro-6000")
QWEN = load_preset("qwen2.5-32b-1x-h200")
DSV2 = load_preset("dsv2-lite-1x-h200")


def kimi(fraction: float, dtype: str = "bfloat16", hicache_gb: int = 0, **flags: FlagValue) -> ServerConfig:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return ServerConfig("models/kimi", fraction, dtype, hicache_gb, {"tp-size": 8, **named})


def start(*faults: str, config: ServerConfig | None = None, version: str | None = None) -> BoxStart:
    return VirtualBox(KIMI, seed=3, faults=faults, version=version).start(config or kimi(0.88))


def test_a_start_says_that_it_is_simulated_and_when_it_is_ready() -> None:
    begun = start()
    assert begun.exit_code is None
    assert begun.engine is not None
    lines = begun.log.splitlines()
    assert "Simulated by kvtune" in lines[0]
    assert lines[-1].endswith("The server is fired up and ready to roll!")
    assert 200 < begun.took_s < 400
    assert "TP7] Load weight end." in begun.log


def test_same_seed_same_box() -> None:
    assert start().log == start().log
    assert start().took_s != VirtualBox(KIMI, seed=4).start(kimi(0.88)).took_s


@pytest.mark.parametrize(
    ("config", "message", "code"),
    [
        (kimi(0.70), "Loaded weights leave no GPU memory for the KV cache", -9),
        (kimi(0.96), "Capture cuda graph failed: CUDA out of memory", -9),
        (kimi(0.995), "torch.OutOfMemoryError: CUDA out of memory", -9),
        (kimi(0.88, hicache_gb=1300), "Not enough host memory available. Requesting 1300.00 GB", -9),
        (kimi(0.88, hicache_gb=170), "scheduler died during initialization (exit code: -9)", 1),
        (kimi(0.88, dtype="fp4"), "argument --kv-cache-dtype", 2),
        (kimi(0.88, chunked_prefill_size="many"), "argument --chunked-prefill-size: invalid int value", 2),
    ],
)
def test_starts_that_die(config: ServerConfig, message: str, code: int) -> None:
    begun = start(config=config)
    assert message in begun.log
    assert (begun.exit_code, begun.engine) == (code, None)
    assert "fired up" not in begun.log


def test_the_weights_take_minutes_and_dummy_weights_do_not() -> None:
    assert start(config=kimi(0.88, load_format="dummy")).took_s < start().took_s - 120


def test_pinning_takes_time() -> None:
    plain, pinned = start().took_s, start(config=kimi(0.88, hicache_gb=60)).took_s
    assert pinned - plain == pytest.approx(60 * KIMI.start_up.pin_s_per_gb, rel=0.01)
    slow = start("slow-pin:5", config=kimi(0.88, hicache_gb=60)).took_s
    assert slow - plain == pytest.approx(5 * (pinned - plain), rel=0.01)
    failed = start("pin-fails", config=kimi(0.88, hicache_gb=60))
    assert "cudaHostRegister failed" in failed.log
    assert failed.exit_code == -9


def test_wording_of_two_versions() -> None:
    older, newer = start(version="0.5.17").log, start(version="0.5.23").log
    assert "Init torch distributed ends." in older
    assert "server_args=ServerArgs(" in older
    assert "Init parallel ends." in newer
    assert "server_args={" in newer


def test_a_leftover_process_is_told_apart_from_the_configuration() -> None:
    begun = start("leftover:2:20")
    assert "The memory capacity is unbalanced" in begun.log
    assert begun.exit_code == -9
    box = VirtualBox(KIMI, seed=1, faults=["leftover:2:20"])
    used = [sample.memory_used_bytes or 0 for sample in box.gpus()]
    assert used[2] == 20 * 2**30
    assert max(used[:2]) < 2**30


def test_a_taken_port_is_found_after_the_whole_start() -> None:
    begun = start("port-taken")
    assert begun.exit_code == 1
    assert begun.took_s > 200
    assert "address already in use" in begun.log
    assert "fired up" not in begun.log


def test_gpus_show_what_the_server_holds() -> None:
    box = VirtualBox(KIMI, seed=1)
    begun = box.start(kimi(0.88))
    assert begun.engine is not None
    samples = box.gpus()
    assert len(samples) == 8
    assert all(sample.simulated and "(simulated)" in sample.name for sample in samples)
    free = samples[0].memory_free_bytes
    assert free is not None
    assert free / 2**30 == pytest.approx(begun.engine.plan.headroom_gib, abs=0.01)
    begun.engine.submit(SimRequest("r", ((1, 8000),), 5))
    events = [*begun.engine.advance(60), *begun.engine.advance(60)]
    assert [type(event) for event in events] == [FirstToken, Finished]
    after = box.gpus()[0].memory_free_bytes
    assert after is not None
    assert after < free - 2**29  # the allocator keeps what the first full chunk needed
    box.stop()
    assert (box.gpus()[0].memory_used_bytes or 0) < 2**30


def test_stopping_waits_for_the_memory() -> None:
    def stop_s(*faults: str) -> float:
        box = VirtualBox(KIMI, seed=1, faults=faults)
        box.start(kimi(0.88))
        return box.stop()

    assert stop_s() == KIMI.start_up.stop_s + KIMI.start_up.memory_back_s
    assert stop_s("slow-release:60") == KIMI.start_up.stop_s + 60
    assert VirtualBox(KIMI, seed=1).stop() == 0.0


def test_one_slow_gpu_slows_all_and_says_so() -> None:
    box = VirtualBox(KIMI, seed=1, faults=["slow-gpu:1.5"])
    engine = box.start(kimi(0.88)).engine
    assert engine is not None
    engine.submit(SimRequest("r", ((1, 100),), 200))
    engine.advance(1.0)
    assert [sample.throttle_reasons for sample in box.gpus()][:2] == [("sw_thermal_slowdown",), ()]


def test_a_lost_gpu_tells_nothing() -> None:
    samples = VirtualBox(KIMI, seed=1, faults=["lost-gpu:5"]).gpus()
    assert [sample.lost for sample in samples] == [index == 5 for index in range(8)]
    assert samples[5].memory_used_bytes is None


def test_hidden_numbers_change_the_truth() -> None:
    box = VirtualBox(KIMI, seed=1, hidden={"box.free_before_weights_gib": 93.0})
    plain = VirtualBox(KIMI, seed=1).start(kimi(0.88)).engine
    other = box.start(kimi(0.88)).engine
    assert plain is not None
    assert other is not None
    assert other.plan.capacity_tokens < plain.plan.capacity_tokens


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("leftovr:1:2", "nearest valid name is 'leftover'"),
        ("leftover:1", r"takes 2 value\(s\)"),
        ("stuck:soon", "must be numbers"),
    ],
)
def test_wrong_faults(spec: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_faults([spec])


def test_noise_differs_from_start_to_start_of_one_box() -> None:
    box = VirtualBox(KIMI, seed=1, faults=["noise:0.2"])
    ends = []
    for _ in range(3):
        engine = box.start(kimi(0.88)).engine
        assert engine is not None
        engine.submit(SimRequest("r", ((1, 100),), 200))
        first, last = *engine.advance(1000), *engine.advance(1000)
        assert isinstance(first, FirstToken)
        assert isinstance(last, Finished)
        ends.append(last.finish_s)
    assert len(set(ends)) == 3
