"""Refused before hours are spent: made-up requests that are longer than the model's context."""

from __future__ import annotations

from pathlib import Path

from launcher.simulated.presets import load_preset
from tuner.errors import StudyFileError
from tuner.memory import read_geometry
from tuner.study_file import Study
from tuner.workload import Synthetic, Workload


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
