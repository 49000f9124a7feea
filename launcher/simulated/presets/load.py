"""Reads a preset by name or from the user's file, and refuses what it does not understand in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from launcher.errors import UsageError
from launcher.simulated.presets.schema import Preset
from launcher.yaml_file import read_yaml, wanted

_SHIPPED = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """The presets that come with kvtune, sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


def load_preset(name_or_path: str | Path) -> Preset:
    """A shipped preset by its name, or a YAML file of the user's.

    Raises UsageError naming the file, the key, the value and what would be right.
    """
    path = _path_of(str(name_or_path))
    raw = read_yaml(path, UsageError, f"preset {path}")
    if not isinstance(raw, dict):
        raise UsageError(f"preset {path}: must be a mapping of sections, such as `box:` and `model:`")
    try:
        return Preset.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_sentence(path, error)) from error


def with_overrides(preset: Preset, values: Mapping[str, float]) -> Preset:
    """The preset with other numbers, by dotted key (`{"pace.decode_base_s": 0.05}`).

    For the contest's hidden truths. Raises UsageError for a key or a value that no preset could have.
    """
    raw = preset.model_dump()
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        if not isinstance(raw.get(section), dict):
            raise UsageError(f"override {dotted!r}: a preset has no section {section!r}")
        raw[section][key] = value
    try:
        return Preset.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_sentence(Path(preset.name), error)) from error


def _path_of(name: str) -> Path:
    shipped = _SHIPPED / f"{name}.yaml"
    if "/" not in name and shipped.is_file():
        return shipped
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    known = preset_names()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"preset {name!r} is not known; did you mean {near!r}? Known are {', '.join(known)}; a file must end in .yaml"
    )


def _sentence(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys_beside(first["loc"]), n=1, cutoff=0.0)
        return f"preset {path}: {where}: unknown key; the nearest valid key is {near[0]!r}"
    value = "" if first["type"] == "missing" else f"{first['input']!r}: "
    shown = value if len(value) < 80 else ""
    return f"preset {path}: {where}: {shown}{wanted(first)}"


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the section in which an unknown key was found."""
    fields: Mapping[str, object] = Preset.model_fields
    for part in location[:-1]:
        annotation = Preset.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = annotation.model_fields
    return list(fields)
