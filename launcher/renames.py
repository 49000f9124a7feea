"""Flags that SGLang renamed between 0.5.6 and 0.5.23, and old switches that became values.

Read in the wheels 0.5.6, 0.5.9, 0.5.10, 0.5.14, 0.5.17, 0.5.18, 0.5.20, 0.5.21 and 0.5.23: the new names
appear in 0.5.14, where the old ones turn into deprecated aliases; from 0.5.20 the old ones are gone. Which of
the two a build's YAML takes is another matter: launcher.config_file.
"""

from __future__ import annotations

from launcher.config import FlagValue
from launcher.version.build import SglangBuild

RENAMED = {
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "piecewise-cuda-graph-tokens": "cuda-graph-bs-prefill",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
}
PREFILL_BACKENDS = {
    "disable-piecewise-cuda-graph": "disabled",
    "enable-breakable-cuda-graph": "breakable",
    "enforce-piecewise-cuda-graph": "tc_piecewise",
}
_FORMER = {new: old for old, new in RENAMED.items()}
_SINCE = (0, 5, 14)


def renamed(name: str, build: SglangBuild) -> str:
    """The name that this build has for a flag, whichever of its two names was given."""
    wanted = RENAMED.get(name, name)
    if _has(wanted, build):
        return wanted
    return _FORMER.get(wanted, name)


def modernised(flags: dict[str, FlagValue], build: SglangBuild) -> dict[str, FlagValue]:
    """The same flags without the deprecated switches that have a spelling with a value.

    `disable-cuda-graph` is two graph back ends set to `disabled` (from 0.5.14), a switch of PREFILL_BACKENDS is
    one; `dp-size N` with `enable-dp-attention` is `attn-dp-size N` where the switch is deprecated (0.5.23).
    """
    new = dict(flags)
    if new.get("disable-cuda-graph") is True and _has("cuda-graph-backend-decode", build):
        del new["disable-cuda-graph"]
        new["cuda-graph-backend-decode"] = new["cuda-graph-backend-prefill"] = "disabled"
    for switch, backend in PREFILL_BACKENDS.items():
        if new.get(switch) is True and _has("cuda-graph-backend-prefill", build):
            del new[switch]
            new["cuda-graph-backend-prefill"] = backend
    if new.get("enable-dp-attention") is True and "enable-dp-attention" in build.special:
        size = new.pop("dp-size", new.pop("data-parallel-size", None))
        if size is not None:
            del new["enable-dp-attention"]
            new["attn-dp-size"] = size
    return new


def _has(name: str, build: SglangBuild) -> bool:
    """Where the build's flags could not be read, its version decides."""
    if build.known_flags is not None:
        return name in build.known_flags
    return build.at_least(*_SINCE)
