"""YAML for SGLang's `--config`: what a file means as a command line, and what our exporter makes of the same flags.

`launcher.simulated.server.arguments` reads such a file by SGLang's rules; `launcher.flags.to_yaml` writes one.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.cases.case import Case, Check, behaviour, compared
from launcher.config import ServerConfig
from launcher.errors import UsageError
from launcher.flags import to_yaml
from launcher.observe.effect import not_in_effect
from launcher.simulated.server.arguments import with_config_file
from launcher.version import SglangBuild

_REFUSED = re.compile(r"error|refuse|reject|unrecogni|invalid|exit 2|must|not allowed", re.IGNORECASE)
"""Words of an expectation that a file is not accepted."""
_BUILD = SglangBuild(version="0.5.9")
"""A build before 0.5.14 gave some flags new names, which the exporter would rightly use."""


def judge(case: Case) -> Iterator[Check]:
    for name in case.inputs:
        expected = case.expect.get(name)
        if isinstance(expected, str) and _REFUSED.search(expected):
            yield behaviour(f"{name} is refused", *_refusal(case, name))
    for key, expected in case.expect.items():
        if isinstance(expected, list) and "argv" in key:
            yield from _argv(case, key, expected)
        elif key in ("suffix", "exporter", "lesson"):
            yield from _BEHAVIOURS[key](case)


def _refusal(case: Case, name: str) -> tuple[bool, str]:
    """Whether reading it by SGLang's rules, or exporting its flags, ends in one clear sentence."""
    path = case.directory / name
    try:
        with_config_file(["--config", str(path)])
        to_yaml(_config(yaml.safe_load(path.read_text(encoding="utf-8"))), _BUILD)
    except UsageError as error:
        return True, str(error)
    return False, "it was accepted"


def _argv(case: Case, key: str, expected: list[str]) -> Iterator[Check]:
    """The words that the file means. An `old_argv` is what a broken build made of it: ours must never be that."""
    exported = _exported(_content(case))
    if key.startswith("old"):
        yield behaviour(f"{key} does not come of our export", exported != expected, exported)
        return
    read = with_config_file(["--config", str(_file(case))])
    yield compared(f"{key}, as SGLang reads it", _grouped(expected), _grouped(_for(expected, read)))
    if exported is not None:
        yield compared(f"{key}, as we export it", _grouped(expected), _grouped(_for(expected, exported)))


def _exported(content: dict[str, Any]) -> list[str] | None:
    """The words of our own file of the same flags; None where the exporter refuses them (a value that is null)."""
    try:
        return _words_of(to_yaml(_config(content), _BUILD))
    except UsageError:
        return None


def _for(expected: list[str], words: list[str]) -> list[str]:
    """All words, or the flags that the case names where it shows one of a longer file."""
    if "--model-path" in expected:
        return words
    wanted = {word for word in expected if word.startswith("--")}
    return [word for group in _grouped(words) if group[0] in wanted for word in group]


def _grouped(words: list[str]) -> list[list[str]]:
    """Each flag with its values, in the order of the names: the order on a command line means nothing."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
    return sorted(groups)


def _file(case: Case) -> Path:
    return case.directory / next(name for name in case.inputs if name.startswith("config"))


def _content(case: Case) -> dict[str, Any]:
    found = yaml.safe_load(_file(case).read_text(encoding="utf-8"))
    return dict(found) if isinstance(found, Mapping) else {}


def _config(content: Any) -> ServerConfig:
    """The flags of a file as a ServerConfig. UsageError where it is no mapping of flags."""
    if not isinstance(content, dict):
        raise UsageError("the file must hold a mapping of flags")
    flags = dict(content)
    return ServerConfig(
        model_path=str(flags.pop("model-path", flags.pop("model", "m"))),
        mem_fraction_static=flags.pop("mem-fraction-static", None),
        kv_cache_dtype=flags.pop("kv-cache-dtype", None),
        flags=flags,
    )


def _words_of(document: str) -> list[str]:
    """What SGLang makes of a YAML document."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "exported.yaml")
        path.write_text(document, encoding="utf-8")
        return with_config_file(["--config", str(path)])


def _suffix(case: Case) -> Iterator[Check]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "best.conf")
        path.write_text(_file(case).read_text(encoding="utf-8"), encoding="utf-8")
        yield behaviour("best.conf is refused", *_refusal_of(path))


def _refusal_of(path: Path) -> tuple[bool, str]:
    try:
        with_config_file(["--config", str(path)])
    except UsageError as error:
        return True, str(error)
    return False, "it was accepted"


def _exporter(case: Case) -> Iterator[Check]:
    """Flat, with dashes, no null, no false, and mappings as JSON text, which every build can read."""
    exported = yaml.safe_load(to_yaml(_config(_content(case)), _BUILD))
    yield behaviour("exported: a flat mapping", not any(isinstance(v, dict) for v in exported.values()), exported)
    yield behaviour("exported: dashes", not any("_" in key for key in exported), exported)
    dropped = [key for key, value in exported.items() if value is None or value is False]
    yield compared("exported: no null and no false", [], dropped)


def _lesson(case: Case) -> Iterator[Check]:
    """A flag that was dropped without a word is noticed when the server is asked what it runs with."""
    config = _config(_content(case))
    opposite = {name.replace("-", "_"): not value for name, value in config.flags.items() if isinstance(value, bool)}
    found = not_in_effect(config, opposite)
    yield compared("flags that did not take effect", len(opposite), len(found))


_BEHAVIOURS = {"suffix": _suffix, "exporter": _exporter, "lesson": _lesson}
