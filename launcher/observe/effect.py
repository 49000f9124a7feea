"""Whether a server runs with what it was asked: a flag can be dropped without a word (a `false` in YAML, an alias)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.config import ServerConfig
from launcher.dtype import normalize_dtype
from launcher.errors import UsageError
from launcher.redact import is_secret

_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "model": "model_path",
}


def not_in_effect(config: ServerConfig, server_info: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each flag of `config` that /server_info contradicts; what it does not show is not judged."""
    asked: dict[str, Any] = {name.replace("-", "_"): value for name, value in config.flags.items()}
    asked["mem_fraction_static"] = config.mem_fraction_static
    asked["kv_cache_dtype"] = config.kv_cache_dtype
    if config.hicache_size_gb:
        asked |= {"hicache_size": config.hicache_size_gb, "enable_hierarchical_cache": True}
    found = []
    for name, value in asked.items():
        shown = _ALIASES.get(name, name)
        if value is None or server_info.get(shown) is None or is_secret(shown):
            continue
        if not _same(value, server_info[shown]):
            found.append(f"{name.replace('_', '-')}: {value} was asked, {server_info[shown]} is in effect")
    return tuple(found)


def _same(asked: Any, shown: Any) -> bool:
    """Numbers by value, dtypes by their one name, everything else by its text."""
    if isinstance(asked, bool) or isinstance(shown, bool):
        return bool(asked) == bool(shown)
    if isinstance(asked, int | float) and isinstance(shown, int | float):
        return float(asked) == float(shown)
    if isinstance(asked, list) and isinstance(shown, list):
        return [str(item) for item in asked] == [str(item) for item in shown]
    return _plain(asked) == _plain(shown)


def _plain(value: Any) -> str:
    try:
        return normalize_dtype(str(value))
    except UsageError:
        return str(value)
