"""What may be added and what may not: DP, TP and PP ranks, priorities, pids, hybrid pools, several workers."""

from __future__ import annotations

import pytest

from launcher.errors import Unparsable
from launcher.observe import merge, sample_from_metrics, sample_from_server_info

TWO_DP_RANKS = """
sglang:num_running_reqs{dp_rank="1",model_name="m",pp_rank="0",tp_rank="4"} 7
sglang:num_running_reqs{dp_rank="1",model_name="m",pp_rank="0",tp_rank="5"} 7
sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="0",tp_rank="0"} 5
sglang:num_running_reqs{dp_rank="0",model_name="m",pp_rank="1",tp_rank="0"} 5
sglang:token_usage{dp_rank="0",model_name="m",pp_rank="0",tp_rank="0"} 0.25
sglang:token_usage{dp_rank="1",model_name="m",pp_rank="0",tp_rank="4"} NaN
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="0"} 100
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="1"} 100
sglang:realtime_tokens_total{dp_rank="1",mode="decode",tp_rank="4"} 30
sglang:realtime_tokens_total{dp_rank="1",mode="prefill_compute",tp_rank="4"} 900
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 40
sglang:generation_tokens_total{is_streaming="false",model_name="m"} 2
"""


def test_tp_and_pp_ranks_are_duplicates_and_dp_ranks_are_not() -> None:
    sample = sample_from_metrics(TWO_DP_RANKS)
    assert [(rank.dp_rank, rank.running_requests) for rank in sample.ranks] == [(0, 5), (1, 7)]
    assert sample.totals.decoded_tokens == 130
    assert sample.totals.prefill_computed_tokens == 900


def test_requests_are_counted_over_all_series() -> None:
    assert sample_from_metrics(TWO_DP_RANKS).totals.generation_tokens == 42


def test_nan_and_missing_are_not_known() -> None:
    ranks = sample_from_metrics(TWO_DP_RANKS).ranks
    assert (ranks[0].token_usage_share, ranks[1].token_usage_share) == (0.25, None)
    assert ranks[0].queued_requests is None
    assert ranks[0].capacity_tokens is None


def test_the_total_over_priorities_speaks() -> None:
    text = (
        'sglang:num_running_reqs{priority="1",tp_rank="0"} 3\n'
        'sglang:num_running_reqs{priority="",tp_rank="0"} 9\n'
        'sglang:num_running_reqs{priority="2",tp_rank="0"} 6\n'
    )
    (rank,) = sample_from_metrics(text).ranks
    assert rank.running_requests == 9


def test_stale_pids_of_one_rank_are_not_added() -> None:
    text = 'sglang:num_retracted_reqs{pid="1",tp_rank="0"} 2\nsglang:num_retracted_reqs{pid="2",tp_rank="0"} 0\n'
    (rank,) = sample_from_metrics(text).ranks
    assert rank.retracted_requests == 2


def test_cache_counters_without_ranks_are_of_all_ranks() -> None:
    text = 'sglang:evicted_tokens_total{cache_type="RadixCache"} 8000\n'
    assert sample_from_metrics(text, ranks_per_pool=8).totals.evicted_tokens == 1000
    with_rank = 'sglang:evicted_tokens_total{tp_rank="0"} 1000\nsglang:evicted_tokens_total{tp_rank="1"} 1000\n'
    assert sample_from_metrics(with_rank, ranks_per_pool=2).totals.evicted_tokens == 1000


def test_workers_and_engines_behind_one_address_are_told_apart() -> None:
    text = 'sglang_num_running_reqs{worker_addr="grpc://a:1"} 1\nsglang_num_running_reqs{worker_addr="grpc://b:1"} 2\n'
    assert [rank.worker for rank in sample_from_metrics(text).ranks] == ["grpc://a:1", "grpc://b:1"]
    engines = 'sglang:num_running_reqs{engine_type="prefill"} 1\nsglang:num_running_reqs{engine_type="decode"} 2\n'
    assert [rank.worker for rank in sample_from_metrics(engines).ranks] == ["decode", "prefill"]


def test_capacity_is_the_sum_of_its_parts_where_it_has_no_gauge() -> None:
    text = "sglang:kv_used_tokens 10\nsglang:kv_evictable_tokens 5\nsglang:kv_available_tokens 85\n"
    (rank,) = sample_from_metrics(text).ranks
    assert (rank.used_tokens, rank.capacity_tokens) == (10, 100)


def test_histograms_of_streamed_and_whole_answers_are_one() -> None:
    lines = [
        f'sglang:e2e_request_latency_seconds_bucket{{is_streaming="{word}",le="{bound}"}} {count}'
        for word in ("true", "false")
        for bound, count in (("1.0", 2), ("+Inf", 3))
    ]
    lines += [f'sglang:e2e_request_latency_seconds_sum{{is_streaming="{word}"}} 4.5' for word in ("true", "false")]
    lines += [f'sglang:e2e_request_latency_seconds_count{{is_streaming="{word}"}} 3' for word in ("true", "false")]
    histogram = sample_from_metrics("\n".join(lines)).e2e
    assert histogram is not None
    assert histogram.upper_bounds_s == (1.0, float("inf"))
    assert histogram.cumulative_counts == (4, 6)
    assert (histogram.sum_s, histogram.count) == (9.0, 6)


def test_another_programs_metrics_are_refused() -> None:
    with pytest.raises(Unparsable, match="another program"):
        sample_from_metrics("vllm:num_requests_running 3\n")


def test_a_note_says_that_one_series_hides_eight_ranks() -> None:
    metrics = sample_from_metrics(
        'sglang:gen_throughput{model_name="m"} 300\nsglang:num_running_reqs{model_name="m"} 4\n'
    )
    info = sample_from_server_info({"dp_size": 8, "tp_size": 8, "enable_dp_attention": True, "version": "0.4.6"})
    sample = merge(metrics, info)
    assert any("1 of 8 dp ranks" in note for note in sample.notes)
    assert sample.ranks[0].gen_tokens_per_s == 300
    assert sample.facts.ranks_per_pool == 1


def test_the_first_source_that_knows_is_believed() -> None:
    metrics = sample_from_metrics('sglang:num_running_reqs{model_name="m"} 4\n')
    info = sample_from_server_info(
        {
            "served_model_name": "other",
            "version": "0.5.17",
            "tp_size": 4,
            "internal_states": [{"effective_max_running_requests_per_dp": 64, "last_gen_throughput": float("inf")}],
        }
    )
    sample = merge(metrics, info)
    assert sample.facts.model_name == "m"
    assert sample.facts.sglang_version == "0.5.17"
    assert sample.facts.ranks_per_pool == 4
    (rank,) = sample.ranks
    assert (rank.running_requests, rank.max_running_requests, rank.gen_tokens_per_s) == (4, 64, None)
    assert sample.sources == ("metrics", "server_info")
