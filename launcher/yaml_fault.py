"""What is wrong with a YAML file, in a few words: the parser's own message is four lines long."""

from __future__ import annotations

import yaml


def yaml_fault(error: yaml.YAMLError) -> str:
    """`line 3, column 9: mapping values are not allowed here`; lines count from 1, as editors show them."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
