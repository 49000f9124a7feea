"""Values of the study as JSON text and back. Infinite bounds of an interval survive the round trip."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tuner.errors import JournalError

T = TypeVar("T")
_adapters: dict[object, TypeAdapter[Any]] = {}


def encode(value: Any) -> str:
    """A dataclass (or what is JSON already) as one line."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(plain, default=_plain, separators=(",", ":"))


def decode(kind: type[T], text: str) -> T:
    """The value that `encode` wrote. Raises JournalError when it is not one."""
    try:
        return from_json_value(kind, json.loads(text))
    except json.JSONDecodeError as error:
        raise JournalError(f"the journal holds text that is not JSON: {error}") from None


def from_json_value(kind: type[T], value: Any) -> T:
    """The value of `kind` that these JSON values stand for. Raises JournalError when they do not."""
    try:
        return cast(T, _adapter(kind).validate_python(value))
    except ValidationError as error:
        raise JournalError(f"the journal holds a {kind.__name__} that cannot be read: {error}") from None


def _adapter(kind: type[T]) -> TypeAdapter[Any]:
    """Built once per type: building takes longer than a hundred decodings."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "items"):
        return dict(value)
    return list(value)
