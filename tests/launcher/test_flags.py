"""A configuration as argv and as YAML, across builds, and as SGLang's own config reader would take it apart again."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import FlagValue, ServerConfig
from launcher.errors import UsageError
from launcher.flags import to_argv, to_yaml, words_beside_yaml
from launcher.version import SglangBuild

VALUES = {"model-path", "mem-fraction-static", "kv-cache-dtype", "hicache-size", "hicache-ratio", "tp-size", "dp-size"}
VALUES |= {"max-total-tokens", "random-seed", "preferred-sampling-params", "host", "api-key", "chat-template"}
SWITCHES = frozenset({"enable-hierarchical-cache", "trust-remote-code", "enable-metrics", "skip-tokenizer-init"})


def build(version: str, values: set[str], special: dict[str, str]) -> SglangBuild:
    known = frozenset(VALUES | values | SWITCHES | special.keys())
    return SglangBuild(version, known, switches=SWITCHES, special=special)


OLD = build("0.5.6", {"cuda-graph-max-bs", "cuda-graph-bs"}, {})
MIDDLE_VALUES = {"cuda-graph-max-bs-decode", "cuda-graph-bs-decode", "lora-strict"}
MIDDLE_VALUES |= {"cuda-graph-backend-decode", "cuda-graph-backend-prefill"}
MIDDLE = build(
    "0.5.18",
    MIDDLE_VALUES,
    {"cuda-graph-max-bs": "Deprecated alias for --cuda-graph-max-bs-decode.", "cuda-graph-bs": "Deprecated alias."}
    | {"disable-cuda-graph": "Deprecated.", "tp-all": "", "no-tp-all": "", "old-thing": "[Deprecated] Use --new."},
)
NEW = build("0.5.23", MIDDLE_VALUES | {"attn-dp-size"}, {"enable-dp-attention": "Deprecated. Use --attn-dp-size."})
ALL = (OLD, MIDDLE, NEW)


def config(**flags: FlagValue) -> ServerConfig:
    return ServerConfig("/m/x", flags={name.replace("_", "-"): value for name, value in flags.items()})


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.version)
def test_the_searched_knobs_are_the_same_in_all_builds(one: SglangBuild) -> None:
    knobs = ServerConfig("/m/x", 0.86, "bfloat16", 20, {"tp-size": 8, "trust-remote-code": True})
    assert " ".join(to_argv(knobs, one)) == (
        "--model-path /m/x --mem-fraction-static 0.86 --kv-cache-dtype bfloat16"
        " --enable-hierarchical-cache --hicache-size 20 --tp-size 8 --trust-remote-code"
    )


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.version)
def test_hicache_off_leaves_its_switch_out(one: SglangBuild) -> None:
    assert not any("hi" in word for word in to_argv(ServerConfig("/m/x", 0.86), one))
    with pytest.raises(UsageError, match="twice the device's"):
        to_argv(config(enable_hierarchical_cache=True), one)
    pinned = to_argv(config(enable_hierarchical_cache=True, hicache_ratio=1.5), one)
    assert pinned[2:] == ("--enable-hierarchical-cache", "--hicache-ratio", "1.5")


def test_hicache_size_is_whole_gb() -> None:
    with pytest.raises(UsageError, match="whole GB per rank"):
        to_argv(ServerConfig("/m/x", hicache_size_gb=2.5), OLD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_name", "one", "written"),
    [
        ("cuda-graph-max-bs", OLD, "--cuda-graph-max-bs"),
        ("cuda-graph-max-bs", MIDDLE, "--cuda-graph-max-bs-decode"),
        ("cuda-graph-max-bs", NEW, "--cuda-graph-max-bs-decode"),
        ("cuda-graph-max-bs-decode", OLD, "--cuda-graph-max-bs"),
        ("cuda-graph-max-bs-decode", NEW, "--cuda-graph-max-bs-decode"),
        ("cuda-graph-max-bs", SglangBuild("0.5.10"), "--cuda-graph-max-bs"),
        ("cuda-graph-max-bs", SglangBuild("0.5.20"), "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_renamed_flag_takes_the_name_of_the_build(given_name: str, one: SglangBuild, written: str) -> None:
    assert to_argv(ServerConfig("/m/x", flags={given_name: 64}), one)[2:] == (written, "64")


def test_deprecated_switches_become_the_values_that_yaml_accepts() -> None:
    assert to_argv(config(disable_cuda_graph=True), SglangBuild("0.5.10"))[2:] == ("--disable-cuda-graph",)
    modern = yaml.safe_load(to_yaml(config(disable_cuda_graph=True), MIDDLE))
    assert modern["cuda-graph-backend-decode"] == modern["cuda-graph-backend-prefill"] == "disabled"
    attention = to_argv(config(dp_size=4, enable_dp_attention=True), NEW)
    assert attention[2:] == ("--attn-dp-size", "4")


SHARED_DEST = SglangBuild(
    "0.5.17",
    frozenset({"model-path", "graph-bs", "old-graph-bs", "stream", "old-stream", "metrics", "m", "attn", "lora-paths"})
    | {"cuda-graph-backend-prefill", "enable-breakable-cuda-graph", "disable-prefill-cuda-graph", "cuda-graph-config"},
    switches=frozenset({"stream", "metrics", "m", "disable-prefill-cuda-graph"}),
    special={"old-graph-bs": "", "old-stream": "", "enable-breakable-cuda-graph": "", "lora-paths": ""},
    aliases=frozenset({"old-graph-bs"}),
    dests={
        "old-graph-bs": "graph_bs",
        "old-stream": "stream",
        "m": "metrics",
        "attn": "attention_backend",
        "enable-breakable-cuda-graph": "cuda_graph_backend_prefill",
    },
)


@pytest.mark.parametrize(
    ("name", "value", "in_yaml", "beside"),
    [
        # The deprecated name is refused nowhere: it is no dest.
        ("graph-bs", [1, 2], {"old-graph-bs": [1, 2]}, ()),
        ("old-graph-bs", [1, 2], {"old-graph-bs": [1, 2]}, ()),
        # A switch that shares its dest with a deprecated one has no other name.
        ("stream", True, {}, ("--stream",)),
        ("old-stream", True, {}, ("--old-stream",)),
        ("stream", False, {}, ()),
        # Only the dest of a switch is written as a bare word.
        ("m", True, {"metrics": True}, ()),
        ("attn", "triton", {"attn": "triton"}, ()),
        ("lora-paths", ["a=/b", "c"], {}, ("--lora-paths", "a=/b", "c")),
        ("attn", "-odd", {}, ("--attn=-odd",)),
        ("cuda-graph-backend-prefill", "disabled", {"disable-prefill-cuda-graph": True}, ()),
        ("cuda-graph-backend-prefill", "full", {"cuda-graph-config": '{"prefill": {"backend": "full"}}'}, ()),
        ("enable-breakable-cuda-graph", True, {"cuda-graph-config": '{"prefill": {"backend": "breakable"}}'}, ()),
    ],
)
def test_a_flag_is_in_the_yaml_as_it_is_accepted_or_beside_it(
    name: str, value: FlagValue, in_yaml: dict[str, object], beside: tuple[str, ...]
) -> None:
    asked = ServerConfig("/m/x", flags={name: value})
    assert yaml.safe_load(to_yaml(asked, SHARED_DEST)) == {"model-path": "/m/x"} | in_yaml
    assert words_beside_yaml(asked, SHARED_DEST) == beside


def test_a_pinned_graph_config_is_not_written_twice() -> None:
    asked = config(cuda_graph_backend_prefill="full", cuda_graph_config={"decode": {"max_bs": 8}})
    assert words_beside_yaml(asked, SHARED_DEST) == ("--cuda-graph-backend-prefill", "full")
    assert json.loads(yaml.safe_load(to_yaml(asked, SHARED_DEST))["cuda-graph-config"]) == {"decode": {"max_bs": 8}}


def test_a_build_that_cannot_be_asked_is_not_risked() -> None:
    for version, left in (("0.5.17", ("--cuda-graph-max-bs-decode", "64")), ("0.5.10", ())):
        assert words_beside_yaml(config(cuda_graph_max_bs=64), SglangBuild(version)) == left


def test_secrets_are_neither_in_the_yaml_nor_named_beside_it() -> None:
    odd = ServerConfig("/m/x", flags={"api-key": "-s3cret"})
    assert words_beside_yaml(odd, MIDDLE) == ()
    assert "s3cret" not in to_yaml(odd, MIDDLE)


def test_an_unknown_flag_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"0\.5\.18 has no flag max-total-tokns; the nearest .* max-total-tokens"):
        to_argv(config(max_total_tokns=1), MIDDLE)
    assert to_argv(config(max_total_tokns=1), SglangBuild("0.5.18"))[2:] == ("--max-total-tokns", "1")


def test_a_prefix_that_means_one_flag_is_that_flag() -> None:
    assert to_argv(config(tp_s=8), MIDDLE)[2:] == ("--tp-size", "8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"mem_fraction": 0.5}, "write mem-fraction"),
        ({"--tp-size": 8}, "write tp-size"),
        ({"port": 30000}, "a port of its own"),
        ({"mem-fraction-static": 0.5}, "its place is mem-fraction-static"),
        ({"tp-size": None}, "has no value"),
    ],
)
def test_flags_in_the_wrong_form_or_place(flags: dict[str, FlagValue], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        to_argv(ServerConfig("/m/x", flags=flags), MIDDLE)


def test_words_for_each_kind_of_value() -> None:
    kinds = config(
        cuda_graph_bs=[1, 2, 4],
        preferred_sampling_params={"temperature": 0.5},
        enable_metrics=False,
        random_seed=-1,
        chat_template="-odd",
        lora_strict=True,
        tp_all=False,
    )
    assert to_argv(kinds, MIDDLE)[2:] == (
        *("--cuda-graph-bs-decode", "1", "2", "4"),
        *("--preferred-sampling-params", '{"temperature": 0.5}'),
        *("--random-seed", "-1"),
        "--chat-template=-odd",
        *("--lora-strict", "true"),
        "--no-tp-all",
    )


def test_yaml_leaves_secrets_out() -> None:
    assert to_yaml(config(api_key="s3cret"), MIDDLE) == "model-path: /m/x\n"
    assert "s3cret" in to_argv(config(api_key="s3cret"), MIDDLE)


def as_sglang_reads(text: str, switches: frozenset[str]) -> list[str]:
    """argv from YAML by the rules of srt/server_args_config_parser.py (0.5.9 to 0.5.23)."""
    argv: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if isinstance(value, bool):
            argv += [f"--{key}"] if key in switches and value else [] if key in switches else [f"--{key}", str(value)]
        elif isinstance(value, list):
            argv += [f"--{key}", *map(str, value)] if value else []
        else:
            argv += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return argv


words = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1).filter(lambda w: not w.startswith("-"))
flag_values = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(0.001, 1e6),
    words,
    st.booleans(),
    st.lists(st.integers(0, 999)),
    st.dictionaries(words, st.one_of(st.integers(), words, st.floats(0, 1)), max_size=3),
)
free_names = st.sampled_from(["max-total-tokens", "random-seed", "preferred-sampling-params", "chat-template", "host"])
all_names = st.one_of(free_names, st.sampled_from(sorted(SWITCHES - {"enable-hierarchical-cache"})))


@given(st.dictionaries(all_names, flag_values), st.sampled_from(ALL))
def test_yaml_means_to_sglang_what_argv_does(flags: dict[str, FlagValue], one: SglangBuild) -> None:
    flags = {name: value is True if name in SWITCHES else value for name, value in flags.items()}
    asked = ServerConfig("/m/x", 0.5, "bfloat16", 7, flags)
    assert as_sglang_reads(to_yaml(asked, one), one.switches) == list(to_argv(asked, one))


def test_the_field_cases_of_yaml(shared) -> None:  # type: ignore[no-untyped-def]
    for folder, key in (("83-yaml-bool-flags", "argv_0.5.23"), ("86-yaml-list-and-root", "argv")):
        case = json.loads((shared / "cases" / folder / "case.json").read_text())
        asked = yaml.safe_load((shared / "cases" / folder / "config.yaml").read_text())
        one = build("0.5.12", {"cuda-graph-bs", "disable-cuda-graph"}, {})
        one = SglangBuild("0.5.12", one.known_flags, switches=SWITCHES | {"disable-cuda-graph"})
        typed = {name: asked.pop(name, None) for name in ("model-path", "mem-fraction-static", "kv-cache-dtype")}
        text = to_yaml(ServerConfig(*typed.values(), flags=asked), one)
        assert sorted(as_sglang_reads(text, one.switches)) == sorted(case["expect"][key])
