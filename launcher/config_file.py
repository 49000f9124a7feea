"""Which flags SGLang takes from the YAML of `--config`, and in which spelling.

The rule (read in 0.5.17 and 0.5.18, srt/server_args_config_parser.py): a key is refused when it is the *dest* of any
action that is neither `store` nor `store_true`, in whatever order the actions were added. A deprecated name
(`--disable-piecewise-cuda-graph`) therefore takes the flag that replaced it (`--cuda-graph-backend-prefill`) out of
the YAML, while a deprecated name that stores a value (`--cuda-graph-max-bs`) is accepted, because its own name is no
dest. A true is written as a bare switch only under a key that is the dest of a `store_true`. On the command line all
of them work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from launcher.config import FlagValue
from launcher.renames import RENAMED
from launcher.version.build import SglangBuild

_NUMBER = re.compile(r"-\d+(?:\.\d*)?|-\.\d+")
_UNSURE = frozenset(RENAMED.values()) | {"cuda-graph-backend-prefill", "cuda-graph-tc-compiler"}
"""Refused in 0.5.17 and 0.5.18: not risked where a build of 0.5.14 or newer could not be asked."""


def split(flags: Mapping[str, FlagValue], build: SglangBuild) -> tuple[dict[str, FlagValue], dict[str, FlagValue]]:
    """Settled flags as those that the YAML takes, spelled for it, and those that only the command line takes."""
    inside: dict[str, FlagValue] = {}
    beside: dict[str, FlagValue] = {}
    for name, value in flags.items():
        spellings = (one for one in _spellings(name, value, flags, build) if _accepts(*one, build))
        spelled = next(spellings, None)
        if spelled is None:
            beside[name] = value
        else:
            inside[spelled[0]] = spelled[1]
    return inside, beside


def takes_value(name: str, build: SglangBuild) -> bool:
    """Whether the build is known to want a word after the flag."""
    known = build.known_flags
    bare = name in build.switches or (name in build.special and name not in build.aliases)
    return known is not None and name in known and not bare


def is_dashed(word: str) -> bool:
    """argparse takes a word with a leading dash for a flag, unless it is a number."""
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def _spellings(
    name: str, value: FlagValue, flags: Mapping[str, FlagValue], build: SglangBuild
) -> Iterator[tuple[str, FlagValue]]:
    """The flag itself, then what makes SGLang run with the same: other names, and for the prefill graph its switch
    or its place in `--cuda-graph-config` (0.5.14 and newer), which wins over all others."""
    yield name, value
    known = build.known_flags or frozenset()
    for other in sorted(known, key=lambda flag: (flag in build.special, flag)):
        if build.dest(other) == build.dest(name) and takes_value(other, build) == takes_value(name, build):
            yield other, value
    if name == "cuda-graph-backend-prefill" and known:
        if value == "disabled" and "disable-prefill-cuda-graph" in known:
            yield "disable-prefill-cuda-graph", True
        if "cuda-graph-config" in known and "cuda-graph-config" not in flags:
            yield "cuda-graph-config", {"prefill": {"backend": value}}


def _accepts(name: str, value: FlagValue, build: SglangBuild) -> bool:
    if any(is_dashed(str(word)) for word in (value if isinstance(value, list) else [value])):
        return False
    if build.known_flags is None:
        return not (build.at_least(0, 5, 14) and name in _UNSURE)
    key = name.replace("-", "_")
    if key in {build.dest(special) for special in build.special}:
        return False
    if name in build.switches:
        return key in {build.dest(switch) for switch in build.switches}
    return takes_value(name, build)
