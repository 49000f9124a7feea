"""What this machine, this build or this model can never serve is said before anything is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.simulated.box import VirtualBox
from launcher.simulated.presets import load_preset
from tuner.daemon.refusals import context_tokens, hicache_beyond_host, refuse_beyond_context, refuse_missing_gpus
from tuner.errors import StudyFileError
from tuner.memory import HostMemory
from tuner.study_file import build_study
from tuner.workload import load_workload

SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
}
EIGHT = VirtualBox(load_preset("llama-70b-8x-h100"), seed=1).gpus()
LLAMA_3_1 = {"rope_type": "llama3", "factor": 8.0}
"""The length in config.json is the stretched one already, and SGLang leaves it so."""
KIMI_K2_5 = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("more", "config", "context"),
    [
        ({"model": "M"}, {"max_position_embeddings": 4096}, 4096),
        ({"model": "M"}, {"max_position_embeddings": 4096, "rope_scaling": {"factor": 4}}, 16_384),
        ({"model": "M"}, {"max_position_embeddings": 131_072, "rope_scaling": LLAMA_3_1}, 131_072),
        ({"model": "M"}, {"max_position_embeddings": 262_144, "rope_scaling": KIMI_K2_5}, 262_144),
        ({"model": "M", "flags": {"context-length": 2048}}, {"max_position_embeddings": 4096}, 2048),
        ({"model": "M"}, {}, None),
        ({"engine": "simulated", "preset": "llama-70b-8x-h100"}, {}, 131_072),
    ],
)
def test_the_context_is_as_pinned_or_as_the_model_says(
    more: dict[str, Any], config: dict[str, Any], context: int | None, tmp_path: Path, *, nested: bool
) -> None:
    told = {**SHAPE, **config}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": told} if nested else told))
    study = build_study({**more, **({"model": str(tmp_path)} if "model" in more else {})})
    assert context_tokens(study) == context


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"gpus": [7, 8]}, "gpus: 8: is not here; this machine shows GPUs 0 to 7"),
        ({"flags": {"tp-size": 16}}, "the server takes 16 GPUs .* but this machine shows 8"),
        ({"flags": {"tp": 4, "pp-size": 4}}, "the server takes 16 GPUs .* but this machine shows 8"),
        ({"flags": {"tp-size": 8}, "gpus": [0, 1, 2, 3]}, "the server takes 8 GPUs .* but `gpus:` names 4"),
        ({"flags": {"tp-size": 8, "base-gpu-id": 4}}, "the server takes 12 GPUs"),
    ],
)
def test_gpus_that_are_not_there_are_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyFileError, match=sentence):
        refuse_missing_gpus(build_study({"model": "M", **more}), EIGHT)


@pytest.mark.parametrize(
    "more",
    [
        {"flags": {"tp-size": 8}},
        {"flags": {"tp-size": 16, "nnodes": 2}},
        {"flags": {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}},
        {"flags": {"tp-size": 2, "dp-size": 4}, "gpus": list(range(8))},
        {"flags": {"tp-size": 16, "device": "cpu"}},
    ],
)
def test_gpus_that_are_enough_are_not(more: dict[str, Any]) -> None:
    refuse_missing_gpus(build_study({"model": "M", **more}), EIGHT)
    refuse_missing_gpus(build_study({"model": "M", "flags": {"tp-size": 16}}), ())


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (["off", 20, 120], None),
        (["off", 20, 167], "hicache-size: 167 GB a rank will not be tried: .* 268 GB free, that is 128 for each of 2"),
        ([167, 200], "hicache-size: 167, 200 GB a rank"),
    ],
)
def test_hicache_beyond_the_host_is_said(sizes: list[Any], sentence: str | None) -> None:
    """Two H200s with 267.6 GB free: SGLang 0.5.17 let both ranks pin 167 GB until the kernel ended one."""
    study = build_study({"model": "M", "space": {"hicache-size": sizes}})
    said = hicache_beyond_host(study, HostMemory(267_600_000_000, ranks=2, sglang_version="0.5.17"))
    assert said is None if sentence is None else re.search(sentence, said or "")
    assert hicache_beyond_host(study, None) is None


def test_requests_beyond_the_context_are_refused_with_both_numbers() -> None:
    study = build_study({"engine": "simulated", "preset": "llama-70b-8x-h100"})
    refuse_beyond_context(study, load_workload("random:in=100000,out=500", seed=0))
    with pytest.raises(StudyFileError, match=r"workload: its longest request takes 100,000,500 tokens, .* 131,072"):
        refuse_beyond_context(study, load_workload("random:in=100000000,out=500", seed=0))
