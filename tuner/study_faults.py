"""What is wrong with a study file, in one sentence: the key, the value and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from launcher.config import SIZE_FLAGS, FlagValue
from launcher.yaml_file import wanted
from tuner.errors import StudyFileError

_EITHER = {
    ("space", "mem-fraction-static"): "must be a number or [low, high]",
    ("space", "concurrency"): "must be a whole number or [low, high]",
    ("workload",): "must be a spec such as random:in=1000,out=500, the path of a file, or a list of named groups",
    ("budget",): "must be a duration such as 2h or 90m",
    ("warm_start",): "must be true, false or the name of a study",
}
"""Keys that take one thing or another: pydantic complains of the first alone."""
_FLAG = "must be a value: text, a number, true or false, or a list"
_MAPPINGS = ("model_type", "dict_type", "mapping_type")


def sentence_of(error: ValidationError, keys: Mapping[str, Sequence[str]]) -> str:
    """The first mistake. `keys`: the valid keys of each section, "" for the file's own."""
    first = error.errors()[0]
    either = next((prefix for prefix in _EITHER if first["loc"][: len(prefix)] == prefix), None)
    of_flag = first["loc"][0] == "flags" and len(first["loc"]) > 1
    place = either or (first["loc"][:2] if of_flag else first["loc"])
    where = ".".join(str(part) for part in place if not str(part).startswith(("function-", "tuple[")))
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; {_nearest(first['loc'], keys)}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    value = "null" if first["input"] is None else repr(first["input"])
    cure = _EITHER[either] if either is not None else _FLAG if of_flag else wanted(first)
    return f"{where}: {value}: {cure}{'; leave it out for the defaults' if first['type'] in _MAPPINGS else ''}"


def check_sizes(flags: Mapping[str, FlagValue]) -> None:
    """How many GPUs a start takes follows from these flags. Raises StudyFileError."""
    for names in SIZE_FLAGS:
        told = [name for name in names if name in flags]
        if len(told) > 1:
            raise StudyFileError(f"flags: {told[1]}: is another name of {told[0]}; keep one of them")
        for name in told:
            value = flags[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise StudyFileError(f"flags: {name}: {value!r}: must be a whole number above 0")


def _nearest(location: Sequence[int | str], keys: Mapping[str, Sequence[str]]) -> str:
    section = str(location[0]) if len(location) > 1 else ""
    valid = keys.get(section, keys[""])
    near = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"valid keys are {', '.join(valid)}"
