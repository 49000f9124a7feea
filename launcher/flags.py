"""A ServerConfig as SGLang's command-line words and as the YAML that SGLang's own `--config` loads.

Facts that shape this (read in the wheels 0.5.6 to 0.5.23, srt/server_args_config_parser.py): YAML keys are
emitted as `--<key>`, so they need dashes; null becomes the word "None"; lists become several words and
empty ones vanish; dicts became a Python repr in older builds, a JSON string works in all; a true or false
that is not a bare switch is emitted with its value from 0.5.9 only, the word "true" works in all; what is
refused is in launcher.config_file.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping

import yaml

from launcher.config import FlagValue, ServerConfig
from launcher.config_file import is_dashed, split, takes_value
from launcher.errors import UsageError
from launcher.redact import is_secret
from launcher.renames import modernised, renamed
from launcher.version.build import SglangBuild

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TYPED = {
    "model-path": "model",
    "model": "model",
    "mem-fraction-static": "mem-fraction-static",
    "kv-cache-dtype": "kv-cache-dtype",
    "hicache-size": "hicache-size",
    "port": "nothing: every launch gets a port of its own",
}


def to_argv(config: ServerConfig, build: SglangBuild) -> tuple[str, ...]:
    """The words after the launch command, port and host aside. Raises UsageError for a flag this build has
    not."""
    return tuple(word for name, value in settle(config, build).items() for word in _words(name, value, build))


def to_yaml(config: ServerConfig, build: SglangBuild) -> str:
    """A flat mapping that `--config` accepts as it is; secrets are left out, and the flags of
    `words_beside_yaml`.

    Raises UsageError for a flag that this build has not.
    """
    document: dict[str, object] = {}
    for name, value in split(_public(config, build), build)[0].items():
        document.update(_yaml_item(name, value, build))
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=False, allow_unicode=True, width=110)


def words_beside_yaml(config: ServerConfig, build: SglangBuild) -> tuple[str, ...]:
    """The words that must stand on the command line beside `--config`, because this build's YAML refuses their
    flags in every spelling. Empty for most. SGLang lets the command line win over the file."""
    beside = split(_public(config, build), build)[1]
    return tuple(word for name, value in beside.items() for word in _words(name, value, build))


def _public(config: ServerConfig, build: SglangBuild) -> dict[str, FlagValue]:
    return {name: value for name, value in settle(config, build).items() if not is_secret(name)}


def settle(config: ServerConfig, build: SglangBuild) -> dict[str, FlagValue]:
    """Every flag by the name that this build has for it, HiCache switched on or left out as a whole."""
    flags: dict[str, FlagValue] = {"model-path": config.model_path}
    if config.mem_fraction_static is not None:
        flags["mem-fraction-static"] = config.mem_fraction_static
    if config.kv_cache_dtype is not None:
        flags["kv-cache-dtype"] = config.kv_cache_dtype
    flags |= _hicache(config)
    for name, value in modernised(_further(config.flags), build).items():
        flags[settled_name(name, build)] = value
    return flags


def settled_name(name: str, build: SglangBuild) -> str:
    """The name that this build has for a flag: as given, renamed, or a prefix that means only one (as
    argparse does).

    Raises UsageError, with the nearest name, when it has none.
    """
    current = renamed(name, build)
    known = build.known_flags
    if known is None or current in known:
        return current
    longer = [flag for flag in known if flag.startswith(current)]
    if len(longer) == 1:
        return longer[0]
    near = difflib.get_close_matches(current, sorted(known), n=1) or longer[:1]
    hint = f"; the nearest that it has is {near[0]}" if near else ""
    raise UsageError(f"flags: SGLang {build.version} has no flag {name}{hint}")


def _hicache(config: ServerConfig) -> dict[str, FlagValue]:
    """`--hicache-size 0` with the switch on would mean a pool of twice the device's: off leaves the switch
    out."""
    size_gb = config.hicache_size_gb
    if size_gb < 0 or size_gb != int(size_gb):
        raise UsageError(f"hicache-size: {size_gb} is not possible; it is whole GB per rank, or off")
    if size_gb:
        return {"enable-hierarchical-cache": True, "hicache-size": int(size_gb)}
    if config.flags.get("enable-hierarchical-cache") and "hicache-ratio" not in config.flags:
        raise UsageError(
            "flags: enable-hierarchical-cache without a size gives a host pool twice the device's; leave it"
            " out (hicache-size switches it on) or pin hicache-ratio too"
        )
    return {}


def _further(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    for name, value in flags.items():
        if not _NAME.fullmatch(name):
            right = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            raise UsageError(f"flags: {name!r} is not how a flag is written here; write {right}")
        if name in _TYPED:
            raise UsageError(f"flags: {name} cannot stand here; its place is {_TYPED[name]}")
        if value is None:
            raise UsageError(f"flags: {name} has no value; leave it out for SGLang's default")
    return dict(flags)


def _words(name: str, value: FlagValue, build: SglangBuild) -> Iterator[str]:
    if isinstance(value, bool):
        yield from _switch_words(name, value, build)
    elif isinstance(value, list):
        yield from (f"--{name}", *map(str, value)) if value else ()
    else:
        word = _scalar(value)
        yield from (f"--{name}={word}",) if is_dashed(word) else (f"--{name}", word)


def _switch_words(name: str, value: bool, build: SglangBuild) -> Iterator[str]:
    if takes_value(name, build):
        yield from (f"--{name}", str(value).lower())
    elif value:
        yield f"--{name}"
    elif f"no-{name}" in build.special:
        yield f"--no-{name}"


def _yaml_item(name: str, value: FlagValue, build: SglangBuild) -> dict[str, object]:
    if isinstance(value, bool):
        if takes_value(name, build):
            return {name: str(value).lower()}
        return {name: True} if value else {}
    if isinstance(value, list):
        return {name: value} if value else {}
    return {name: _scalar(value) if isinstance(value, dict) else value}


def _scalar(value: str | int | float | dict[str, object]) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
