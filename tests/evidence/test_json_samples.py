"""/v1/loads, /get_load and /server_info of several versions, and flags that are not in effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import ServerConfig
from launcher.errors import Unparsable
from launcher.observe import sample_from_get_load, sample_from_loads, sample_from_server_info
from launcher.observe.effect import not_in_effect
from launcher.observe.payload import read_json


def _capture(shared: Path, name: str) -> object:
    return json.loads((shared / "captures" / "h200-sglang-0.5.17" / name).read_text())


def test_loads_of_a_real_server(shared: Path) -> None:
    sample = sample_from_loads(_capture(shared, "q0.97.loads.json"))
    (rank,) = sample.ranks
    assert (rank.running_requests, rank.queued_requests, rank.capacity_tokens) == (129, 31, 302705)
    assert rank.max_running_requests == 4096
    assert sample.facts.sglang_version == "0.5.17"


def test_loads_without_metrics_do_not_tell_the_gen_rate() -> None:
    loads = {"loads": [{"num_running_reqs": 3, "gen_throughput": 0.0, "queues": {"retracted": 0}}]}
    (rank,) = sample_from_loads(loads).ranks
    assert rank.gen_tokens_per_s is None
    assert rank.retracted_requests is None
    idle = {"loads": [{"num_running_reqs": 0, "gen_throughput": 0.0}]}
    assert sample_from_loads(idle).ranks[0].gen_tokens_per_s == 0.0


def test_get_load_counts_the_waiting_among_all() -> None:
    loads = [{"dp_rank": 1, "num_reqs": 9, "num_waiting_reqs": 4, "num_tokens": 100, "num_pending_tokens": 30}]
    (rank,) = sample_from_get_load(loads).ranks
    assert (rank.dp_rank, rank.running_requests, rank.queued_requests, rank.used_tokens) == (1, 5, 4, 70)
    assert sample_from_get_load({"load": 70}).ranks[0].running_requests is None


def test_server_info_of_a_real_server(shared: Path) -> None:
    sample = sample_from_server_info(_capture(shared, "qfp8.server_info.json"))
    facts = sample.facts
    assert facts.kv_cache_dtype == facts.kv_cache_dtype_asked == "fp8_e4m3"
    assert facts.headroom_gib == pytest.approx(19.68)
    assert facts.graphs_gib == pytest.approx(0.52)
    assert (facts.graph_max_batch, facts.mem_fraction_static) == (256, 0.85)
    assert facts.hicache_size_gb is None


def test_auto_is_asked_but_not_known_to_be_in_use(shared: Path) -> None:
    facts = sample_from_server_info(_capture(shared, "dshic.server_info.json")).facts
    assert (facts.kv_cache_dtype, facts.kv_cache_dtype_asked) == (None, "auto")
    assert facts.hicache_size_gb == 20


def test_the_schedulers_dtype_beats_auto() -> None:
    info = {"kv_cache_dtype": "auto", "version": "0.5.10", "internal_states": [{"kv_cache_dtype": "fp8_e4m3"}]}
    assert sample_from_server_info(info).facts.kv_cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize(
    ("memory", "graphs_gib"),
    [({"cuda_graph": 1.5}, 1.5), ({"graph": 2.0}, 2.0), ({"graph": {"prefill": 0.5, "decode": 2.0}}, 2.5)],
)
def test_graph_memory_in_every_shape(memory: dict[str, object], graphs_gib: float) -> None:
    info = {"version": "x", "internal_states": [{"memory_usage": memory}]}
    assert sample_from_server_info(info).facts.graphs_gib == graphs_gib


@pytest.mark.parametrize(
    ("info", "ranks"),
    [
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 1),
        ({"tp_size": 8, "dp_size": 2, "enable_dp_attention": True}, 4),
        ({"tp_size": 4, "dp_size": 2}, 4),
        ({"tp_size": 4, "pp_size": 2}, 8),
    ],
)
def test_ranks_that_hold_the_same_pool(info: dict[str, object], ranks: int) -> None:
    assert sample_from_server_info(info).facts.ranks_per_pool == ranks


def test_keys_are_not_kept() -> None:
    info = {"version": "x", "tp_size": 1, "api_key": "secret-1", "admin_api_key": "secret-2"}
    assert "secret" not in repr(sample_from_server_info(info))


@pytest.mark.parametrize("read", [sample_from_loads, sample_from_get_load, sample_from_server_info])
def test_other_json_is_refused(read: object) -> None:
    for answer in ({"detail": "Not Found"}, [], "ok", None, {"loads": "x"}, [1, 2]):
        with pytest.raises(Unparsable):
            read(answer)  # type: ignore[operator]


_KEYS = st.sampled_from(
    [
        "loads",
        "internal_states",
        "memory_usage",
        "graph",
        "version",
        "tp_size",
        "dp_size",
        "num_running_reqs",
        "dp_rank",
        "kv_cache_dtype",
        "cuda_graph_config",
        "decode",
        "max_bs",
        "model_path",
        "load",
        "num_reqs",
        "enable_dp_attention",
    ]
)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(_JSON)
def test_any_json_is_read_or_refused(answer: object) -> None:
    for read in (sample_from_loads, sample_from_get_load, sample_from_server_info):
        try:
            sample = read(answer)
        except Unparsable:
            continue
        assert sample.ranks


def test_plain_text_is_named_as_such() -> None:
    with pytest.raises(Unparsable, match="router"):
        read_json("not yet implemented", "/server_info")
    assert read_json('{"x": NaN}', "/x") != {}


def test_flags_that_are_not_in_effect() -> None:
    config = ServerConfig(
        "/m/x",
        mem_fraction_static=0.9,
        kv_cache_dtype="bf16",
        hicache_size_gb=40,
        flags={"tp-size": 8, "disable-radix-cache": False, "cuda-graph-bs": [1, 2], "page-size": 64},
    )
    info = {
        "mem_fraction_static": 0.9,
        "kv_cache_dtype": "bfloat16",
        "hicache_size": 40,
        "enable_hierarchical_cache": False,
        "tp_size": 8,
        "disable_radix_cache": True,
        "cuda_graph_bs": ["1", "2"],
    }
    found = not_in_effect(config, info)
    assert [sentence.split(":")[0] for sentence in found] == ["disable-radix-cache", "enable-hierarchical-cache"]
