"""JSON answers read without trust: wrong types and numbers that are not finite are "not known"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import Unparsable

Payload = Mapping[str, Any]


def read_json(text: str, where: str) -> object:
    """Decode an answer. Python's decoder takes the bare NaN and Infinity that lenient servers write.

    Raises Unparsable, naming the endpoint, for plain text (routers, proxies).
    """
    try:
        return json.loads(text)
    except ValueError:
        said = " ".join(text.split())[:80]
        raise Unparsable(f"{where} does not answer in JSON ({said!r}): a router or an unsupported server?") from None


def number(payload: Payload, *names: str) -> float | None:
    """The first of these entries that is a finite number."""
    for name in names:
        value = payload.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def whole(payload: Payload, *names: str) -> int | None:
    """The first of these entries that is a finite number, as an integer."""
    value = number(payload, *names)
    return None if value is None else round(value)


def text(payload: Payload, *names: str) -> str | None:
    """The first of these entries that is a text with something in it."""
    return next((value for name in names if isinstance(value := payload.get(name), str) and value), None)


def section(payload: Payload, name: str) -> Payload:
    """An entry that is a mapping; empty where it is not."""
    value = payload.get(name)
    return value if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Payload]:
    """The mappings of a list; empty where it is none."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [row for row in value if isinstance(row, Mapping)]
