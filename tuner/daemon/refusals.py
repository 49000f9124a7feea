"""Said before hours are spent: what this machine, this build or this model can never serve."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.gpus import GpuSample
from launcher.simulated.presets import load_preset
from tuner.errors import StudyFileError
from tuner.memory import HostMemory, read_geometry
from tuner.memory.host import GB, HostEvidence, host_survival
from tuner.space import refuse_impossible
from tuner.study_file import Study
from tuner.workload import Synthetic, Workload

UNLIKELY = 0.5
_BLACKWELL = re.compile(r"Blackwell|\bG?B[123]00\b|\bGB10\b|\bRTX 50[5-9]0")


def refuse_unsimulated(study: Study) -> None:
    """What the simulated engine would not heed. Raises StudyFileError."""
    if study.simulated and (study.pinned.dp_size > 1 or study.pinned.dp_attention):
        raise StudyFileError("flags: dp-size: the simulated engine has no data-parallel ranks; leave it out")


def refuse_missing_gpus(study: Study, here: Sequence[GpuSample]) -> None:
    """A server that takes more GPUs than there are dies in its start. Where none is shown, nobody can tell.

    Raises StudyFileError.
    """
    if not here or study.flags.get("device") == "cpu":
        return
    shown = sorted(gpu.index for gpu in here)
    absent = [index for index in study.gpus or () if index not in shown]
    if absent:
        raise StudyFileError(f"gpus: {absent[0]}: is not here; this machine shows {_listed(shown)}")
    first = study.flags.get("base-gpu-id")
    wanted = study.pinned.ranks_here + (first if isinstance(first, int) else 0)
    chosen = len(study.gpus or shown)
    if wanted > chosen:
        whose = "`gpus:` names" if study.gpus else "this machine shows"
        raise StudyFileError(
            f"flags: the server takes {wanted} GPUs (by tp-size, pp-size, dp-size, base-gpu-id), but {whose} {chosen}"
        )


def _listed(indices: Sequence[int]) -> str:
    return f"GPU {indices[0]} alone" if len(indices) == 1 else f"GPUs {indices[0]} to {indices[-1]}"


def refuse_dtypes(study: Study, sglang_version: str | None, here: Sequence[GpuSample]) -> None:
    """A KV dtype that this box can never serve. Raises StudyFileError."""
    backend = study.flags.get("attention-backend")
    refuse_impossible(
        study.space.build(),
        blackwell=any(_BLACKWELL.search(gpu.name) for gpu in here) if here else None,
        attention_backend=backend if isinstance(backend, str) else None,
        sglang_version=sglang_version,
    )


def hicache_beyond_host(study: Study, host: HostMemory | None) -> str | None:
    """The HiCache sizes of the space that all ranks together cannot pin, in a sentence: they will not be tried."""
    sizes = [size for size in study.space.build().hicache_sizes_gb if size]
    beyond = [size for size in sizes if host_survival(size, host, HostEvidence(), device_pool_gb=0.0) < UNLIKELY]
    if host is None or not beyond:
        return None
    told = ", ".join(map(str, beyond))
    return (
        f"hicache-size: {told} GB a rank will not be tried: the host has {host.available_bytes / GB:,.0f} GB free, "
        f"that is {host.likely_gb:,.0f} for each of {host.ranks} rank(s)"
    )


def refuse_beyond_context(study: Study, workload: Workload) -> None:
    """Raises StudyFileError. Lengths of texts are estimates, and are left to the server to judge."""
    context = context_tokens(study)
    made = [one for one in workload.sample(512) if isinstance(one.prompt, Synthetic)]
    longest = max((one.prompt_tokens + (one.output_tokens or one.max_tokens) for one in made), default=0)
    if context is not None and longest > context:
        raise StudyFileError(
            f"workload: its longest request takes {longest:,} tokens, but the model's context is {context:,}; shorten "
            "in, out or cv, or pin context-length"
        )


def context_tokens(study: Study) -> int | None:
    """As pinned, as the preset says, or as the model's config.json says; None: not known."""
    pinned = study.flags.get("context-length")
    if isinstance(pinned, int):
        return pinned
    if study.simulated:
        return load_preset(study.preset).model.context_len
    config = Path(study.model_path) / "config.json"
    return read_geometry(config).context_tokens if config.is_file() else None
