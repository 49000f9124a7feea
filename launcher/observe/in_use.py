"""The KV dtype that an `auto` has become, by arithmetic: bytes of the pool ÷ tokens ÷ elements of the model.

In current builds nothing else tells it from outside: /server_info goes on saying `auto` where a checkpoint brought FP8
(0.5.14-0.5.23). It needs the model's config.json, so that it is known for models in a folder of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.dtype import dtype_in_use, kv_elements_per_token
from launcher.observe.sample import ServerFacts, ServerSample

_LEAST_GIB = 0.25
"""memory_usage is rounded to 0.001 GiB: of a smaller pool too little is left of the figure."""


def with_dtype_in_use(info: ServerSample) -> ServerSample:
    """The sample of /server_info with the dtype in use filled in, where it can be computed."""
    facts = info.facts
    capacity = info.ranks[0].capacity_tokens if info.ranks else None
    if facts.kv_cache_dtype is not None or not capacity or (facts.kv_cache_gib or 0.0) < _LEAST_GIB:
        return info
    dtype = dtype_in_use(
        asked=facts.kv_cache_dtype_asked,
        bytes_per_token=(facts.kv_cache_gib or 0.0) * 2**30 / capacity,
        elements_per_token=_elements(facts),
    )
    return replace(info, facts=replace(facts, kv_cache_dtype=dtype))


def _elements(facts: ServerFacts) -> int | None:
    config = _read_config(facts.model_path)
    return None if config is None else kv_elements_per_token(config, facts.ranks_per_pool or 1)


def _read_config(model_path: str | None) -> Mapping[str, Any] | None:
    """config.json of a model in a folder; None for a name of a hub and for what cannot be read."""
    if model_path is None or not model_path.startswith("/"):
        return None
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, Mapping) else None
