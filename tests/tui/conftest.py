"""Frames made by hand, so that screens and rules are tested without servers and without time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.gpus import GpuProcess, GpuSample
from launcher.observe.sample import Histogram, RankSample, ServerFacts, ServerSample, Totals
from launcher.timeline import MemorySeen, Timeline
from tui.build import SnapshotBuilder
from tui.frame import Frame, ServerReading
from tui.snapshot import Snapshot
from tuner.journal.view import BoundaryPoint, Incumbent, StageNow, StudyState, StudyView
from tuner.trial import (
    Interval,
    LevelEnd,
    LevelResult,
    Percentiles,
    Proposal,
    Purpose,
    Setting,
    TrialResult,
    TrialState,
)

GIB = 2**30
NOON = 1_780_000_000.0
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, math.inf)


def histogram(count: float, median_s: float) -> Histogram:
    """Observations spread over three buckets around the median."""
    place = next(i for i, bound in enumerate(BOUNDS) if bound >= median_s)
    shares = [0.0 if i < place else 0.7 if i == place else 0.96 if i == place + 1 else 1.0 for i in range(len(BOUNDS))]
    return Histogram(BOUNDS, tuple(count * part for part in shares), count * median_s, count)


KIMI = ServerFacts(
    sglang_version="0.5.17",
    model_name="moonshotai/Kimi-K2.5",
    kv_cache_dtype="bfloat16",
    kv_cache_dtype_asked="bfloat16",
    mem_fraction_static=0.88,
    tp_size=8,
    dp_size=1,
    weights_gib=72.37,
    kv_cache_gib=10.42,
    graphs_gib=2.1,
    headroom_gib=5.53,
    hicache_size_gb=48,
    schedule_conservativeness=1.0,
    simulated=True,
)


@dataclass(frozen=True)
class Feed:
    """A server in steady state, by the figures of the field report unless said otherwise."""

    url: str = "http://127.0.0.1:30000"
    capacity: int = 159_277
    used: int = 152_900
    evictable: int = 2_400
    running: int = 72
    queued: int = 79
    finished_per_s: float = 0.47
    tokens_each: float = 1_900.0
    gen_per_s: float = 930.0
    retracted_per_s: float = 0.0
    prefill_per_s: float = 1_000.0
    facts: ServerFacts = KIMI
    host_used: int | None = 610_000
    host_total: int | None = 680_000

    def sample(self, at_s: float) -> ServerSample:
        rank = RankSample(
            running_requests=self.running + round(3 * math.sin(at_s / 7)),
            queued_requests=self.queued,
            retracted_requests=0,
            used_tokens=self.used + round(1500 * math.sin(at_s / 11)),
            evictable_tokens=self.evictable,
            available_tokens=self.capacity - self.used - self.evictable,
            capacity_tokens=self.capacity,
            token_usage_share=round(self.used / self.capacity, 2),
            gen_tokens_per_s=self.gen_per_s,
            max_running_requests=2048,
            hicache_used_tokens=self.host_used,
            hicache_total_tokens=self.host_total,
        )
        return ServerSample(
            at_s,
            self.url,
            self.facts,
            (rank,),
            self.totals(at_s),
            histogram(self.finished_per_s * at_s, 2.1),
            histogram(self.gen_per_s * at_s / 4, 0.08),
            histogram(self.finished_per_s * at_s, 75.0),
            ("metrics", "server_info"),
        )

    def totals(self, at_s: float) -> Totals:
        done = self.finished_per_s * at_s
        return Totals(
            generation_tokens=done * self.tokens_each + 900 * math.sin(at_s / 60),
            prompt_tokens=done * 2000,
            finished_requests=done,
            aborted_requests=0.0,
            decoded_tokens=self.gen_per_s * at_s + 300 * math.sin(at_s / 5),
            prefill_computed_tokens=self.prefill_per_s * at_s,
            prefill_cached_tokens=self.prefill_per_s * at_s * 0.3,
            cached_tokens_by_source={"device": done * 300, "host": done * 40},
            retracted_requests=self.retracted_per_s * at_s,
            retracted_input_tokens=self.retracted_per_s * at_s * 2000,
            retracted_output_tokens=self.retracted_per_s * at_s * 900,
            evicted_tokens=400 * at_s,
            load_back_tokens=55 * at_s,
            graph_decode_passes=9 * at_s,
            eager_decode_passes=0.0,
        )


def gpu(index: int, pid: int | None, used_gib: float = 90.6, total_gib: float = 95.6) -> GpuSample:
    processes = () if pid is None else (GpuProcess(pid, int((used_gib - 0.5) * GIB), "sglang::scheduler"),)
    return GpuSample(
        index,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        f"GPU-{index}",
        int(total_gib * GIB),
        int(used_gib * GIB),
        0.97 - 0.01 * (index % 3),
        468.0 + 7 * (index % 4),
        600.0,
        66.0 + index,
        processes=processes,
        simulated=True,
    )


def frame(at_s: float, *feeds: Feed, gpus: tuple[GpuSample, ...] = (), study: StudyView | None = None) -> Frame:
    now = NOON + at_s
    readings = tuple(
        ServerReading(feed.url, feed.sample(at_s), now, pids=(1000 + 100 * place,)) for place, feed in enumerate(feeds)
    )
    return Frame(now, readings, gpus, None, study)


def eight_gpus() -> tuple[GpuSample, ...]:
    return tuple(gpu(index, 1000) for index in range(8))


@cache
def watched(make: Callable[[float], Frame], seconds: int = 480) -> Snapshot:
    """The snapshot after `seconds` of watching, one frame a second."""
    builder = SnapshotBuilder()
    for second in range(1000, 1000 + seconds):
        snapshot = builder.add(make(float(second)))
    return snapshot


SECOND = Feed(
    url="http://127.0.0.1:30001",
    capacity=468_577,
    used=61_000,
    evictable=188_000,
    running=24,
    queued=0,
    finished_per_s=1.9,
    tokens_each=410.0,
    gen_per_s=812.0,
    prefill_per_s=2100.0,
    host_used=None,
    host_total=None,
    facts=ServerFacts(
        sglang_version="0.5.17",
        model_name="Qwen/Qwen2.5-32B-Instruct",
        kv_cache_dtype="bfloat16",
        kv_cache_dtype_asked="auto",
        mem_fraction_static=0.85,
        tp_size=4,
        weights_gib=15.3,
        kv_cache_gib=57.2,
        graphs_gib=1.9,
        headroom_gib=9.4,
        simulated=True,
    ),
)


def busy(at_s: float) -> Frame:
    """Two servers on eight GPUs: four each."""
    first = replace(Feed(), facts=replace(Feed().facts, tp_size=4))
    gpus = tuple(gpu(i, 1000 if i < 4 else 1100, 90.6 if i < 4 else 77.5) for i in range(8))
    return frame(at_s, first, SECOND, gpus=gpus)


def ceiling(at_s: float) -> Frame:
    return frame(at_s, Feed(), gpus=eight_gpus())


def level(concurrency: int, rate: float) -> LevelResult:
    return LevelResult(
        concurrency,
        LevelEnd.NARROW,
        Interval(rate, rate * 0.975, rate * 1.025),
        180.0,
        260.0,
        rate / 1900,
        84,
        gen_tokens_per_s=rate * 1.04,
        running_requests=concurrency * 0.6,
        queued_requests=concurrency * 0.4,
        token_usage_share=0.94,
        tokens_in_flight_each=2100.0,
        retracted_share=0.02,
        cache_hit_share=0.15,
        ttft_s=Percentiles(2.1, 5.0, 7.5, 11.0),
        itl_s=Percentiles(0.07, 0.09, 0.1, 0.2),
        e2e_s=Percentiles(75.0, 120.0, 140.0, 200.0),
    )


OOM = Failure(
    Kind.GPU_OOM_RUNTIME,
    Stage.FIRST_PREFILL,
    Direction.DOWN,
    Culprit.CONFIGURATION,
    False,
    "GPU 3 ran out of memory in the first large prefill: 1.69 GiB wanted, 0.82 GiB free",
    evidence=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.69 GiB.",),
)


def trial(
    number: int, fraction: float, rate: float | None, *, hicache: int = 0, failure: Failure | None = None
) -> TrialResult:
    return TrialResult(
        number,
        Proposal(
            Setting(fraction, "bfloat16", hicache),
            (64, 96, 144),
            Purpose.FIRST if number == 1 else Purpose.EXPLORE,
            f"{fraction}: predicted 159 K tokens, 5.5 GiB headroom, 97% to survive",
            1500.0,
            159_000.0,
            5.5,
            0.97,
        ),
        TrialState.MEASURED if rate is not None else TrialState.FAILED,
        Timeline(memory=MemorySeen(94.07, 72.37, 10.42, 159_277, headroom_gib=5.53)),
        () if rate is None else (level(64, rate * 0.8), level(96, rate)),
        failure,
        headroom_min_gib=round((0.94 - fraction) * 94, 1) if rate is not None else None,
    )


STUDY = StudyView(
    directory=Path("studies/kimi"),
    study_id="kimi-k2.5",
    model_path="moonshotai/Kimi-K2.5",
    simulated=True,
    state=StudyState.RUNNING,
    budget_s=7200.0,
    spent_s=4310.0,
    created_unix_s=NOON - 4310,
    stage=StageNow("measuring", 7, 96, NOON + 1150, 400.0),
    trials=(
        trial(1, 0.85, 610.0),
        trial(2, 0.88, 905.0),
        trial(3, 0.93, None, failure=OOM),
        trial(4, 0.895, 948.0),
        trial(5, 0.90, 951.0, hicache=48),
        trial(6, 0.91, 940.0),
        TrialResult(7, trial(7, 0.90, 1.0).proposal, TrialState.RUNNING, None),
    ),
    incumbent=Incumbent(5, Setting(0.90, "bfloat16", 48), 96, Interval(951.0, 930.0, 972.0)),
    last_failure="trial 3 (0.93): GPU 3 ran out of memory in the first large prefill",
    boundary=tuple(
        BoundaryPoint("bfloat16", 0.84 + 0.005 * i, 1 / (1 + math.exp((0.84 + 0.005 * i - 0.922) / 0.004)))
        for i in range(20)
    ),
)


def study_running(at_s: float) -> Frame:
    return frame(at_s, Feed(), gpus=eight_gpus(), study=STUDY)


def down(at_s: float) -> Frame:
    """One server has gone a minute ago, one wants a key, one is new."""
    now = NOON + at_s
    gone = ServerReading(
        Feed.url, Feed().sample(at_s), now - 75, "http://127.0.0.1:30000: connection refused", "Unreachable"
    )
    locked = ServerReading("http://10.0.0.7:30000", problem="401: an API key is needed", problem_kind="Unauthorized")
    return Frame(now, (gone, locked, ServerReading("http://127.0.0.1:30002")), eight_gpus()[:2])


def no_gpu(at_s: float) -> Frame:
    return replace(frame(at_s, SECOND), gpu_problem="no NVIDIA driver on this machine")


def odd_gpus(at_s: float) -> Frame:
    """Four GPUs as the field has them: throttled, lost, silent about its memory, and with a stranger on it."""
    hot = replace(gpu(0, 1000), throttle_reasons=("thermal (hardware)",), power_w=212.0, temperature_c=93.0)
    lost = GpuSample(1, "NVIDIA GeForce RTX 3090", lost=True)
    silent = GpuSample(2, "NVIDIA GB10", utilization_share=0.0, power_w=11.2, temperature_c=35.0)
    shared = replace(gpu(3, 1000), processes=(*gpu(3, 1000, 83.0).processes, GpuProcess(4242, 7 * GIB, "train.py")))
    return frame(at_s, replace(Feed(), facts=replace(KIMI, tp_size=2)), gpus=(hot, lost, silent, shared))


def dp_ranks(at_s: float) -> Frame:
    """Eight DP ranks, one of them hot."""
    made = frame(at_s, Feed())
    (reading,) = made.servers
    assert reading.sample is not None
    ranks = tuple(
        RankSample(
            dp,
            58 if dp == 3 else 4,
            12 if dp == 3 else 0,
            0,
            9_100 if dp == 3 else 1_300,
            0,
            900,
            10_000,
            0.91 if dp == 3 else 0.13,
        )
        for dp in range(8)
    )
    return replace(made, servers=(replace(reading, sample=replace(reading.sample, ranks=ranks)),))


@pytest.fixture(autouse=True)
def no_study_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A daemon that happens to run here is none of a test's business."""
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path / "kvtune"))


@pytest.fixture(scope="session")
def feed() -> SimpleNamespace:
    """Everything above, for tests: they cannot import a conftest by name."""
    return SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("_")})
