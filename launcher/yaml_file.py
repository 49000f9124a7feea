"""A YAML file of the user's, and what is wrong with it in a few words: the parser's own message is four lines long.

What its values should be is checked by pydantic, whose words ("input should be a valid string") are not a user's.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic_core import ErrorDetails

_WANTED = {
    "missing": "is missing",
    "string_type": "must be text; write it in quotes",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be finite",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_short": "must name {min_length} at least",
    "dict_type": "must be a mapping of keys",
    "mapping_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
}
"""By pydantic's type of a mistake; the braces are its context."""


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


def wanted(fault: ErrorDetails) -> str:
    """What a value must be instead, in the words of YAML: `must be a whole number`."""
    words = _WANTED.get(fault["type"])
    return fault["msg"] if words is None else words.format(**fault.get("ctx", {}))
