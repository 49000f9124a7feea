"""Refused before hours are spent: made-up requests that are longer than the model's context."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.simulated.presets import load_preset
from tuner.errors import StudyFileError
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
    """As pinned, as the preset says, or as config.json says (stretched by its rope scaling); None: not known."""
    pinned = study.flags.get("context-length")
    if isinstance(pinned, int):
        return pinned
    if study.simulated:
        return load_preset(study.preset).model.context_len
    try:
        config = json.loads((Path(study.model_path) / "config.json").read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        factor = (text.get("rope_scaling") or {}).get("factor") or 1.0
        return int(text["max_position_embeddings"] * factor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
