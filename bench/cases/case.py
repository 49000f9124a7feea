"""A case and the checks that come of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROUNDED = 0.501
"""An expected figure is met by whatever rounds to it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One folder: case.json and its inputs."""

    directory: Path
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def kind(self) -> str:
        return str(self.about.get("kind", ""))

    @property
    def expect(self) -> Mapping[str, Any]:
        found = self.about.get("expect", {})
        return found if isinstance(found, Mapping) else {}

    @property
    def inputs(self) -> list[str]:
        """File names, in the order of the case."""
        listed = self.about.get("inputs") or sorted(path.name for path in self.directory.iterdir())
        return [name for name in listed if name != "case.json" and (self.directory / name).is_file()]

    def text(self, name: str) -> str:
        return (self.directory / name).read_text(encoding="utf-8", errors="replace")

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))

    def scopes(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What is expected of each input: under its name, or of the one input there is."""
        named = {name: self.expect[name] for name in self.inputs if isinstance(self.expect.get(name), Mapping)}
        if named:
            yield from named.items()
        elif self.inputs:
            yield self.inputs[0], self.expect


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was expected, and what came of it."""

    what: str
    expected: Any
    got: Any
    agrees: bool


def load_cases(directory: Path) -> list[Case]:
    """Every case of a directory, in the order of their names. ValueError where there is none."""
    files = sorted(directory.glob("*/case.json"))
    if not files:
        raise ValueError(f"{directory}: there is no */case.json in it")
    return [Case(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in files]


def compared(what: str, expected: Any, got: Any) -> Check:
    """A figure, list or word against what the product gave."""
    return Check(what, expected, got, same(expected, got))


def behaviour(what: str, holds: bool, got: Any) -> Check:
    """Something that must be so."""
    return Check(what, True, got, holds)


def same(expected: Any, got: Any) -> bool:
    """Equality: numbers to the digits that are expected, lists item by item, None for what is not known."""
    if expected is None or got is None or isinstance(expected, bool) or isinstance(got, bool):
        return expected is got or expected == got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return abs(expected - got) <= _tolerance(expected)
    if isinstance(expected, list) and isinstance(got, list | tuple):
        return len(expected) == len(got) and all(map(same, expected, got))
    return str(expected) == str(got)


def _tolerance(expected: float) -> float:
    """Half a unit of the last digit that is written; nothing for a whole number."""
    decimals = re.search(r"\.(\d+)$", repr(expected))
    if isinstance(expected, int) or decimals is None:
        return 1e-9 * max(1.0, abs(expected))
    return _ROUNDED * 10.0 ** -len(decimals[1]) + 1e-12
