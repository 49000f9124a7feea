"""A workload: named groups of sessions, a sample of them that stands for all, and the lanes that play it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from launcher.yaml_file import read_yaml
from tuner.errors import WorkloadError
from tuner.workload.files import open_file
from tuner.workload.lengths import LengthBook
from tuner.workload.request import Request, Session
from tuner.workload.sample import stratified
from tuner.workload.source import Source
from tuner.workload.spec import is_spec, parse_spec

SAMPLE_SESSIONS = 1024
"""Sessions that a trial plays; at the end of them it begins again, with new private text."""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one kind. With a concurrency of its own it is a closed loop of its own.

    It is an open loop when it has a rate, or when its requests tell their arrival times and it has no concurrency.
    """

    name: str
    source: Source
    concurrency: int | None = None
    weight: float = 1.0
    rate_per_s: float | None = None

    @property
    def is_open(self) -> bool:
        traced = self.concurrency is None and self.source.session(0)[0].arrival_s is not None
        return traced or self.rate_per_s is not None

    def arriving(self, count: int, seed: int) -> tuple[tuple[Session, ...], tuple[float, ...]]:
        """At most `count` sessions and the seconds from each arrival to the next: the trace's own from its beginning,
        or a Poisson stream at the rate."""
        if self.rate_per_s is not None:
            sessions = self.sessions(count, seed)
            return sessions, tuple(np.random.default_rng(seed).exponential(1 / self.rate_per_s, len(sessions)).tolist())
        first = [self._named(self.source.session(at)) for at in range(min(count, len(self.source.output_tokens)))]
        sessions = tuple(sorted(first, key=_arrival_s))
        times_s = [_arrival_s(session) for session in sessions]
        gaps_s = np.diff(times_s, append=times_s[-1] + (times_s[-1] - times_s[0]) / len(times_s))
        return sessions, tuple(gaps_s.tolist())

    def sessions(self, count: int, seed: int) -> tuple[Session, ...]:
        """At most `count` sessions that stand for all of the group, in play order.

        Turns that follow one another are found in the cache while it has room, and how often it has depends on how
        unevenly the load comes: near the pool's limit an even order would keep alive what a real one evicts. So the
        sample stands for all, but conversations are played in a random order.
        """
        places = stratified(self.source.output_tokens, self.source.prompt_tokens, count, seed)
        sessions = [self._named(self.source.session(int(place))) for place in places]
        if any(len(session) > 1 for session in sessions):
            random.Random(seed).shuffle(sessions)
        return tuple(sessions)

    def _named(self, session: Session) -> Session:
        return tuple(
            replace(
                request,
                group=self.name,
                request_id=f"{self.name}/{request.request_id}",
                session=f"{self.name}/{request.session}",
            )
            for request in session
        )


@dataclass(frozen=True, slots=True)
class Lane:
    """One closed loop: `slots` clients that play these sessions in order, again and again.

    With `gaps_s`, an open loop: the seconds from each session's arrival to the next, at most `slots` at a time.
    """

    slots: int
    sessions: tuple[Session, ...]
    gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """What the user wants served.

    The sample and its order depend on nothing but the workload and the seed.
    """

    name: str
    groups: tuple[Group, ...]
    seed: int
    lengths: LengthBook = field(default_factory=LengthBook)
    """Answer lengths seen so far, for requests whose length the model decides."""

    @property
    def total_requests(self) -> int | None:
        """Requests of the user's whole job; None when a group has no end."""
        totals = [group.source.total_requests for group in self.groups]
        return None if None in totals else sum(total for total in totals if total)

    @property
    def total_output_tokens(self) -> int | None:
        """Answer tokens of the whole job; None when it has no end or the model decides the lengths."""
        if self.total_requests is None or any(request.output_tokens is None for request in self.sample(64)):
            return None
        return sum(_job_tokens(group.source) for group in self.groups)

    @property
    def concurrency(self) -> int | None:
        """The concurrency that the groups name together; None when they leave it to the tuner."""
        own = [group.concurrency for group in self.groups if group.concurrency]
        return sum(own) or None

    def sample(self, count: int) -> tuple[Request, ...]:
        """About `count` requests that stand for all, in play order, session by session."""
        sessions = (session for lane in self.lanes(1, count) for session in lane.sessions)
        return tuple(request for session in sessions for request in session)

    @property
    def is_open(self) -> bool:
        """Whether arrivals decide everything: the level of such a workload is what the server may run at once."""
        return all(group.is_open for group in self.groups)

    def lanes(
        self, concurrency: int, sessions: int = SAMPLE_SESSIONS, *, open_slots: int | None = None
    ) -> tuple[Lane, ...]:
        """The loops of a level of `concurrency` clients.

        Groups with a concurrency of their own keep its proportions; the others share one loop by weight. An open loop
        has at most `open_slots` requests out, `concurrency` where that is not given.
        """
        opened = [group for group in self.groups if group.is_open]
        own = [group for group in self.groups if group.concurrency is not None and group not in opened]
        mixed = [group for group in self.groups if group not in own and group not in opened]
        each = max(1, sessions // len(self.groups))
        slots = _shares([group.concurrency or 0 for group in own], concurrency) if own else []
        return (
            *(Lane(count, self._played(group, each)) for group, count in zip(own, slots, strict=True)),
            *((Lane(concurrency, self._mixed(mixed, sessions)),) if mixed else ()),
            *(self._open_lane(group, open_slots or concurrency, each) for group in opened),
        )

    def _played(self, group: Group, count: int) -> tuple[Session, ...]:
        return self._known(group.sessions(count, self.seed))

    def _open_lane(self, group: Group, slots: int, count: int) -> Lane:
        sessions, gaps_s = group.arriving(count, self.seed)
        return Lane(slots, self._known(sessions), gaps_s)

    def _mixed(self, groups: Sequence[Group], sessions: int) -> tuple[Session, ...]:
        counts = _shares([group.weight for group in groups], max(sessions, len(groups)))
        decks = [group.sessions(count, self.seed) for group, count in zip(groups, counts, strict=True)]
        return self._known(tuple(interleaved(decks)))

    def _known(self, sessions: tuple[Session, ...]) -> tuple[Session, ...]:
        return tuple(tuple(self.lengths.expect(request) for request in session) for session in sessions)


def _arrival_s(session: Session) -> float:
    return session[0].arrival_s or 0.0


def interleaved(decks: Sequence[Sequence[Session]]) -> Iterator[Session]:
    """Every deck spread evenly over the whole: card i of n stands at (i + 1/2) / n."""
    places = [((at + 0.5) / len(deck), which, at) for which, deck in enumerate(decks) for at in range(len(deck))]
    for _, which, at in sorted(places):
        yield decks[which][at]


def load_workload(source: str | Path | Sequence[Mapping[str, object]], *, seed: int) -> Workload:
    """A workload from a spec, a file's path, several of either joined by " + ", or the groups of a YAML list.

    `short=random:in=200,out=50@150 + long=prompts.jsonl@32`: a group may have a name (`name=`), a concurrency of its
    own (`@150`), a rate (`@0.5/s`: an open loop) or a weight (`*2`). A YAML list has `name`, `requests`, and
    optionally `concurrency`, `rate`, `weight` and `lengths` (a recorded run that gives the answer lengths). Raises
    WorkloadError.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix in (".yaml", ".yml") and path.is_file():
            return load_workload(_yaml_groups(path), seed=seed)
        entries: Sequence[Mapping[str, object]] = [_entry(part.strip()) for part in str(source).split(" + ")]
        name = str(source)
    else:
        entries = list(source)
        name = " + ".join(str(entry.get("name", entry.get("requests"))) for entry in entries)
    groups = tuple(_group(entry, at, seed) for at, entry in enumerate(entries))
    _refuse_half_named(groups, name)
    return Workload(name, groups, seed)


def _yaml_groups(path: Path) -> list[Mapping[str, object]]:
    content = read_yaml(path, WorkloadError)
    groups = content.get("workload") if isinstance(content, Mapping) else content
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        raise WorkloadError(f"{path}: a workload is a list of groups with `name` and `requests`")
    return groups


def _entry(text: str) -> dict[str, object]:
    """`name=requests@concurrency` or `name=requests*weight`, as a mapping."""
    entry: dict[str, object] = {}
    head, separator, rest = text.partition("=")
    if separator and (is_spec(rest) or Path(rest.partition("@")[0]).exists()) and ":" not in head:
        entry["name"], text = head, rest
    for mark, unit, key in (("@", "/s", "rate"), ("@", "", "concurrency"), ("*", "", "weight")):
        body, separator, number = text.removesuffix(unit).rpartition(mark)
        if unit and not text.endswith(unit):
            continue
        if separator and number.replace(".", "", 1).isdigit():
            entry[key], text = float(number), body
    return {**entry, "requests": text}


_GROUP_KEYS = ("name", "requests", "concurrency", "rate", "weight", "lengths")


def _group(entry: Mapping[str, object], at: int, seed: int) -> Group:
    unknown = [key for key in entry if key not in _GROUP_KEYS]
    if unknown or "requests" not in entry:
        what = f"unknown key {unknown[0]!r}" if unknown else "`requests` is missing"
        raise WorkloadError(f"workload group {at + 1}: {what}; a group has {', '.join(_GROUP_KEYS)}")
    requests = str(entry["requests"])
    lengths = Path(str(entry["lengths"])) if entry.get("lengths") else None
    concurrency = _positive(entry, "concurrency", requests)
    return Group(
        name=str(entry.get("name", "all" if at == 0 else f"group-{at + 1}")),
        source=_source(requests, lengths, seed + at),
        concurrency=int(concurrency) if concurrency else None,
        weight=_positive(entry, "weight", requests) or 1.0,
        rate_per_s=_positive(entry, "rate", requests),
    )


def _source(requests: str, lengths: Path | None, seed: int) -> Source:
    if is_spec(requests):
        return parse_spec(requests, seed=seed)
    path = Path(os.path.expanduser(requests))
    if os.path.isfile(path):
        return open_file(path, lengths)
    if path.suffix in (".json", ".jsonl"):
        raise WorkloadError(f"workload {requests!r}: there is no such file")
    return parse_spec(requests, seed=seed)


def _positive(entry: Mapping[str, object], key: str, requests: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise WorkloadError(f"workload {requests!r}: {key}={value!r} must be a number above 0")
    return float(value)


def _refuse_half_named(groups: Sequence[Group], name: str) -> None:
    own = [group for group in groups if group.concurrency is not None or group.is_open]
    if own and len(own) != len(groups) and not all(group.is_open for group in own):
        raise WorkloadError(f"workload {name!r}: either every group names a concurrency (@N) or none does")
    for group in groups:
        if group.rate_per_s is not None and group.concurrency is not None:
            raise WorkloadError(f"workload {name!r}: {group.name} has a rate and a concurrency; it can have one")
    if len({group.name for group in groups}) != len(groups):
        raise WorkloadError(f"workload {name!r}: two groups have the same name")


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Whole parts of `total` in proportion to the weights, at least one each."""
    edges = np.rint(np.cumsum(weights) / np.sum(weights) * total).astype(int)
    parts = np.maximum(1, np.diff(np.concatenate(([0], edges))))
    parts[np.argmax(parts)] -= max(0, int(parts.sum()) - max(total, len(weights)))
    return [int(part) for part in parts]


def _job_tokens(source: Source) -> int:
    turns = len(source.session(0))
    sessions = (source.total_requests or 0) / turns if turns else 0
    return round(float(source.output_tokens.mean()) * sessions)
