"""A YAML file of the user's, and what is wrong with it in a few words: the parser's own message is four lines long."""

from __future__ import annotations

from pathlib import Path

import yaml


def read_yaml(path: Path, refused: type[Exception], name: str | None = None) -> object:
    """What is in it. Raises `refused` with one sentence that begins with `name` (else the path)."""
    shown = name or str(path)
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{shown}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise refused(f"{shown}: is not YAML; {yaml_fault(error)}") from None


def yaml_fault(error: yaml.YAMLError) -> str:
    """`line 3, column 9: mapping values are not allowed here`; lines count from 1, as editors show them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
