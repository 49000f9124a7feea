"""Lines, prefixes, ranks and start-ups of SGLang's log, in the forms of several versions and collectors."""

from __future__ import annotations

import calendar
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.failure import Stage
from launcher.logs import (
    BatchLine,
    LogFollower,
    Milestone,
    Phase,
    Rank,
    RetractionLine,
    distinct_retractions,
    read_event,
    read_line,
    read_timeline,
    stage_after,
)

DECODE = "Decode batch, #running-req: 7, #token: 512, token usage: 0.05, gen throughput (token/s): 99.50, #queue-req: 2"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[2026-05-04 10:00:00 TP3] ", Rank(tp=3)),
        ("[2026-05-04 10:00:00.123 DP1 PP0 ATTN_CP0 MOE_DP0 TP9 EP2] ", Rank(dp=1, pp=0, tp=9, ep=2)),
        ("[2026-05-04 10:00:00] ", Rank()),
        ("[10:00:00 TP1] ", Rank(tp=1)),
        ("[gpu=4] ", Rank(tp=4)),
        ("[2026-05-04 18:00:00] [2026-05-04 10:00:00 TP0] ", Rank(tp=0)),
        ("2026-05-04T10:00:00.000000001+08:00 stderr F [2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("(SGLangEngine pid=7, ip=10.0.0.3) [2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("server-1  | [2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("12: [2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("May 04 10:00:00 box unit[77]: [2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("[2026-05-04 10:00:00 DisaggregationMode.DECODE TP2] ", Rank(tp=2)),
        ("\x1b[1;33m[2026-05-04 10:00:00 TP2] ", Rank(tp=2)),
        ("", Rank()),
    ],
)
def test_prefixes(prefix: str, rank: Rank) -> None:
    line = read_line(prefix + DECODE)
    assert line.text == DECODE
    assert line.rank == rank
    batch = read_event(line)
    assert isinstance(batch, BatchLine)
    assert (batch.running_requests, batch.queued_requests, batch.used_tokens) == (7, 2, 512)
    assert batch.gen_tokens_per_s == 99.5
    assert batch.used_graph is None


@pytest.mark.parametrize(
    ("text", "tokens", "usage"),
    [
        ("Decode batch. #running-req: 1, #token: 10, token usage: 0.10, #queue-req: 0, ", 10, 0.10),
        ("Decode batch, #running-req: 1, #full token: 20, full token usage: 0.20, #swa token: 5, swa token usage: 0.90",
         20, 0.90),
        ("Decode batch, #running-req: 1, #full token: 20, full token usage: 0.20, mamba num: 5, mamba usage: 0.95",
         20, 0.95),
        ("Decode batch, #running-req: 1, #gpu token: 30, gpu token usage: 0.30, #cpu token: 9, cpu token usage: 0.99",
         30, 0.30),
        ("Decode batch [77], #running-req: 1, #token: 40, token usage: 0.40, pre-allocated usage: 0.07", 40, 0.40),
        ("Prefill batch, #new-seq: 2, #new-token: 5, #cached-token: 9, token usage: 0.50, #running-req: 1", None, 0.50),
    ],
)  # fmt: skip
def test_pools_of_batch_lines(text: str, tokens: int | None, usage: float) -> None:
    batch = read_event(read_line(f"[2026-05-04 10:00:00 TP0] {text}"))
    assert isinstance(batch, BatchLine)
    assert batch.used_tokens == tokens
    assert batch.token_usage_share == usage
    assert batch.running_requests == 1


def test_a_prefill_line() -> None:
    batch = read_event(read_line("Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 2, npu graph: True, x: 1"))
    assert isinstance(batch, BatchLine)
    assert batch.phase is Phase.PREFILL
    assert (batch.new_tokens, batch.cached_tokens, batch.used_graph) == (8, 2, True)
    assert batch.running_requests is None


def test_one_retraction_is_logged_by_every_tp_rank() -> None:
    text = "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 70, "
    text += "#new_token_ratio: 0.1000 -> 0.5000"
    lines = [f"[2026-05-04 10:00:0{second} DP0 TP{rank}] {text}" for second in (1, 2) for rank in range(4)]
    found = [read_event(read_line(line)) for line in lines]
    events = distinct_retractions([event for event in found if isinstance(event, RetractionLine)])
    assert len(events) == 2
    assert (events[0].retracted_requests, events[0].tokens_gained, events[0].ratio_after) == (2, 70, 0.5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_log_says_the_same_in_pieces_of_any_size(data: st.DataObject) -> None:
    log = "\n".join(
        [
            "[2026-05-04 10:00:00 TP0] Load weight begin. avail mem=78.10 GB",
            "  0%| | 0/9\r 10%|# | 1/9\r[2026-05-04 10:00:05 TP0] Memory pool end. avail mem=5.00 GB",
            f"[2026-05-04 10:00:09 TP0] {DECODE}",
            "Traceback (most recent call last):",
            f"[2026-05-04 10:00:10 TP0] {DECODE}",
        ]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    whole, pieces = LogFollower(), LogFollower()
    expected = [*whole.feed(log), *whole.finish()]
    places = [0, *cuts, len(log)]
    found = [event for a, b in pairwise(places) for event in pieces.feed(log[a:b])]
    assert [*found, *pieces.finish()] == expected
    assert pieces.milestones == whole.milestones
    assert len(expected) == 4


def test_the_stage_follows_from_what_is_logged() -> None:
    stage = Stage.LAUNCH
    for line, expected in (
        ("[2026-05-04 10:00:00 TP0] Load weight begin. avail mem=78.10 GB", Stage.WEIGHTS),
        ("[2026-05-04 10:00:09] INFO:     Application startup complete.", Stage.WARM_UP),
        ("[2026-05-04 10:00:09 TP0] Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0", Stage.WARM_UP),
        ("[2026-05-04 10:00:10] The server is fired up and ready to roll!", Stage.FIRST_PREFILL),
        ("[2026-05-04 10:00:11 TP0] Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0", Stage.FIRST_PREFILL),
        (f"[2026-05-04 10:00:12 TP0] {DECODE}", Stage.UNDER_LOAD),
        ("[2026-05-04 10:00:13 TP0] Capture cuda graph begin. avail mem=1.00 GB", Stage.UNDER_LOAD),
        ("[2026-05-04 10:00:14] SIGTERM received. Draining", Stage.SHUTDOWN),
    ):
        stage = stage_after(stage, read_event(read_line(line)))
        assert stage is expected, line
    assert stage_after(Stage.LAUNCH, read_event(read_line(DECODE))) is Stage.UNDER_LOAD


START = """[2026-05-04 10:00:00] server_args={'model_path': '/m'}
[2026-05-04 10:00:20 TP0] Init parallel begin.
[2026-05-04 10:00:30 TP0] Load weight begin. avail mem=94.20 GB
[2026-05-04 10:00:30 TP1] Load weight begin. avail mem=94.07 GB
[2026-05-04 10:01:30 TP0] Load weight end. elapsed=60.00 s, type=X, avail mem=21.80 GB, mem usage=72.37 GB.
[2026-05-04 10:01:32 TP1] Load weight end. elapsed=62.00 s, type=X, avail mem=21.70 GB, mem usage=72.37 GB.
[2026-05-04 10:01:33 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159277, KV size: 10.42 GB
[2026-05-04 10:01:33 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159277, KV size: 10.42 GB
[2026-05-04 10:01:34 TP0] Memory pool end. avail mem=11.30 GB
[2026-05-04 10:01:34 TP1] Memory pool end. avail mem=11.20 GB
[2026-05-04 10:01:35 TP0] Capture target decode CUDA graph begin. backend=full, avail mem=11.20 GB
[2026-05-04 10:02:05 TP0] Capture target decode CUDA graph end. elapsed=30.0 s, mem usage=5.70 GB, avail mem=5.60 GB.
[2026-05-04 10:02:05 TP1] Capture target decode CUDA graph end. elapsed=30.0 s, mem usage=5.76 GB, avail mem=5.50 GB.
[2026-05-04 10:02:06 TP0] max_total_num_tokens=159277, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=131072, available_gpu_mem=5.60 GB
[2026-05-04 10:02:06 TP0] Allocating kv hierarchical KV host pool: 600000 tokens, 48.00 GB host memory.
[2026-05-04 10:02:46 TP0] Tree cache initialized: impl=HiRadixCache
[2026-05-04 10:02:47] INFO:     Application startup complete.
[2026-05-04 10:02:57] The server is fired up and ready to roll!
"""


def test_a_start_as_a_timeline() -> None:
    timeline = read_timeline(START)
    assert [(span.stage, span.begin_s, span.end_s) for span in timeline.spans] == [
        (Stage.LAUNCH, 0, 30),
        (Stage.WEIGHTS, 30, 92),
        (Stage.KV_POOL, 90, 94),
        (Stage.GRAPH_CAPTURE, 94, 126),
        (Stage.HOST_POOL, 126, 166),
        (Stage.WARM_UP, 167, 177),
    ]
    assert timeline.ready_s == 177


def test_memory_is_of_the_poorest_rank() -> None:
    memory = read_timeline(START).memory
    assert (memory.before_weights_gib, memory.weights_gib, memory.kv_cache_gib) == (94.07, 72.37, 10.42)
    assert (memory.graphs_gib, memory.headroom_gib) == (5.76, 5.50)
    assert (memory.capacity_tokens, memory.kv_cache_dtype, memory.hicache_host_gb) == (159277, "bfloat16", 48.0)
    assert memory.bytes_per_token == pytest.approx(70_245, rel=1e-3)


@pytest.mark.parametrize("zone_h", [-9.5, 0, 5.75, 8])
def test_seconds_count_from_the_launch_in_whatever_zone_the_server_logs(zone_h: float) -> None:
    stamped = time.strptime("2026-05-04 10:00:00 UTC", "%Y-%m-%d %H:%M:%S %Z")
    launched = calendar.timegm(stamped) - 12.0 - zone_h * 3600
    timeline = read_timeline(START, launched)
    assert timeline.ready_s == pytest.approx(189)
    assert timeline.spans[0].end_s == pytest.approx(42)


def test_a_start_that_died_has_an_open_stage() -> None:
    timeline = read_timeline(START.split("[2026-05-04 10:01:33")[0])
    assert timeline.ready_s is None
    assert (timeline.spans[-1].stage, timeline.spans[-1].end_s) == (Stage.KV_POOL, None)


def test_older_wordings() -> None:
    log = """[2025-05-04 10:00:00 TP0] Load weight begin. avail mem=78.00 GB
[2025-05-04 10:00:10 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=60.00 GB
[2025-05-04 10:00:11 TP0] Using KV cache dtype: torch.float8_e5m2
[2025-05-04 10:00:11 TP0] KV Cache is allocated. #tokens: 1000, K size: 1.50 GB, V size: 1.50 GB
[2025-05-04 10:00:12 TP0] Memory pool end. avail mem=50.00 GB
[2025-05-04 10:00:20 TP0] Capture cuda graph end. Time elapsed: 8.00 s. mem usage=1.00 GB. avail mem=49.00 GB.
[2025-05-04 10:00:21 TP0] max_total_num_tokens=1000, chunked_prefill_size=-1, max_prefill_tokens=16384, \
max_running_requests=9, context_len=99
[2025-05-04 10:00:21 TP0] Allocating 40.00 GB host memory for hierarchical KV cache.
"""
    memory = read_timeline(log).memory
    assert memory.weights_gib == 18.0
    assert (memory.kv_cache_gib, memory.kv_cache_dtype) == (3.0, "fp8_e5m2")
    assert (memory.headroom_gib, memory.chunked_prefill_size, memory.hicache_host_gb) == (49.0, -1, 40.0)


def test_every_capture_has_its_figures(shared: Path) -> None:
    """The table of the H200 runs: capacity and what was left."""
    expected = {
        "q85": (234288, 17.46, 144),
        "qfp8": (468577, 19.68, 49),
        "q0.97": (302705, 2.95, 42),
        "oom0.98": (308406, 1.45, 36),
        "oom0.985": (311257, 0.95, 104),
        "dshic": (100000, 104.02, 64),
    }
    for name, (tokens, headroom_gib, ready_s) in expected.items():
        log = (shared / "captures" / "h200-sglang-0.5.17" / f"{name}.log").read_text()
        timeline = read_timeline(log)
        memory = timeline.memory
        assert (memory.capacity_tokens, memory.headroom_gib, timeline.ready_s) == (tokens, headroom_gib, ready_s), name
        assert memory.before_weights_gib == 139.13


def test_milestones_are_not_taken_from_tracebacks() -> None:
    assert not isinstance(read_event(read_line("    cache = HiRadixCache(server_args=server_args)")), Milestone)
