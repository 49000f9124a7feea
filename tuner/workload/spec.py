"""Workloads without prompts: a spec names the lengths and how prompts share their beginnings.

    random:in=1000,out=500,cv=0.5
    shared-prefix:groups=8,prefix=2000,in=500,out=500,cv=0.3
    multi-turn:turns=4,in=300,out=300

`cv` is the coefficient of variation of `in` and `out` (log-normal; 0 is constant), `n` the number of
requests of the whole job, if it has an end.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuner.errors import WorkloadError
from tuner.workload.request import Request, Segment, Session, Synthetic
from tuner.workload.sample import Ints
from tuner.workload.source import Lengths, private_key, shared_segment

_KINDS: Mapping[str, Mapping[str, float | None]] = {
    "random": {"in": None, "out": None, "cv": 0.0, "n": 0},
    "shared-prefix": {"groups": None, "prefix": None, "in": None, "out": None, "cv": 0.0, "n": 0},
    "multi-turn": {"turns": None, "in": None, "out": None, "cv": 0.0, "n": 0},
}
"""Keys of each kind, with their defaults; None must be given."""

_MAY_BE_ZERO = ("cv", "n", "prefix")
_ENDLESS_SESSIONS = 8192
"""How many sessions stand for a distribution without an end."""


@dataclass(frozen=True, slots=True)
class SpecSource:
    """Sessions drawn from a spec. Turn k's prompt holds the turns before it, answers included."""

    prefix_keys: Ints
    """Shared prefix of each session; empty when none is shared."""
    prefix_tokens: int
    inputs: Ints
    """New prompt tokens, shape (sessions, turns)."""
    outputs: Ints
    """Answer tokens, shape (sessions, turns)."""
    total_requests: int | None
    seed: int

    @property
    def prompt_tokens(self) -> Ints:
        return np.asarray(self.inputs.sum(axis=1), dtype=np.int64)

    @property
    def output_tokens(self) -> Ints:
        return np.asarray(self.outputs.sum(axis=1), dtype=np.int64)

    def session(self, index: int) -> Session:
        segments: tuple[Segment, ...] = ()
        if len(self.prefix_keys):
            segments = (shared_segment(self.prefix_tokens, self.seed, int(self.prefix_keys[index])),)
        requests: list[Request] = []
        for turn in range(self.inputs.shape[1]):
            asked, answered = int(self.inputs[index, turn]), int(self.outputs[index, turn])
            segments = (*segments, Segment(private_key(self.seed, index, 2 * turn), asked))
            requests.append(self._request(index, turn, segments, answered))
            segments = (*segments, Segment(private_key(self.seed, index, 2 * turn + 1), answered))
        return tuple(requests)

    def _request(self, index: int, turn: int, segments: tuple[Segment, ...], output_tokens: int) -> Request:
        return Request(
            request_id=f"{index}.{turn}",
            prompt=Synthetic(segments),
            prompt_tokens=sum(segment.tokens for segment in segments),
            max_tokens=output_tokens,
            output_tokens=output_tokens,
            ignore_eos=True,
            prefix_tokens=self.prefix_tokens if len(self.prefix_keys) else 0,
            session=str(index),
            turn=turn,
            answer_key=private_key(self.seed, index, 2 * turn + 1),
        )


def parse_spec(text: str, *, seed: int) -> SpecSource:
    """Read one spec. Raises WorkloadError, naming key, value and what would be right."""
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise WorkloadError(f"workload {text!r}: {_no_kind(kind)}")
    values = _values(text, kind, rest)
    lengths_in, lengths_out = Lengths(values["in"], values["cv"]), Lengths(values["out"], values["cv"])
    turns = int(values.get("turns", 1))
    total = int(values["n"]) or None
    sessions = -(-total // turns) if total else _ENDLESS_SESSIONS
    rng = np.random.default_rng(seed)
    groups = int(values.get("groups", 0))
    return SpecSource(
        prefix_keys=np.arange(sessions if groups else 0) % max(1, groups),
        prefix_tokens=int(values.get("prefix", 0)),
        inputs=lengths_in.draw(sessions * turns, rng).reshape(sessions, turns),
        outputs=lengths_out.draw(sessions * turns, rng).reshape(sessions, turns),
        total_requests=total,
        seed=seed,
    )


def is_spec(text: str) -> bool:
    """Whether a text is meant as a spec (and not as the path of a file)."""
    return text.partition(":")[0] in _KINDS


def _values(text: str, kind: str, rest: str) -> dict[str, float]:
    known = _KINDS[kind]
    values = {key: value for key, value in known.items() if value is not None}
    for part in filter(None, rest.split(",")):
        key, _, raw = part.partition("=")
        values[key] = _number(text, kind, key, raw)
    missing = [key for key in known if key not in values]
    if missing:
        raise WorkloadError(f"workload {text!r}: {kind} needs {', '.join(f'{key}=NUMBER' for key in missing)}")
    return values


def _number(text: str, kind: str, key: str, raw: str) -> float:
    if key not in _KINDS[kind]:
        near = difflib.get_close_matches(key, _KINDS[kind], 1)
        hint = f"did you mean {near[0]}?" if near else f"{kind} knows {', '.join(_KINDS[kind])}"
        raise WorkloadError(f"workload {text!r}: {kind} has no key {key!r}; {hint}")
    try:
        value = float(raw)
    except ValueError:
        value = float("nan")
    low = 0 if key in _MAY_BE_ZERO else 1
    if not low <= value <= 1e9:
        raise WorkloadError(f"workload {text!r}: {key}={raw} must be a number of at least {low}")
    return value


def _no_kind(kind: str) -> str:
    near = difflib.get_close_matches(kind, _KINDS, 1)
    return f"no such file, and no spec {kind!r}; " + (
        f"did you mean {near[0]}?" if near else f"specs are {', '.join(_KINDS)}"
    )
