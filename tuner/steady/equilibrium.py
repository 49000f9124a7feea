"""The middle of a long run, as a first wave.

Clients that all start at once grow old together: for minutes the pool holds requests of one age, then half
as many of another, and neither is the rate of a day-long job. In the long run a running request is met with
a probability in proportion to its answer's length L, and at an age that is uniform on 0..L (the renewal
theorem's equilibrium age). So the first wave is drawn like that, and a request of age a carries its a
generated tokens as prompt: the KV cache is occupied as it would be in mid-life, from the first minute on.
Clients that would be waiting have no age.

The draw is systematic, not random: ages and lengths are spread evenly, so that the few dozen running
requests hold the mean number of tokens and not one that happens to be off by several per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.steady.estimate import Pool
from tuner.workload import Lane, Session, Synthetic
from tuner.workload.sample import GOLDEN, SILVER, Floats, kronecker, strata

_LONGEST_WAIT_STEPS = 1e9
_MIX_DRAWS = 16


@dataclass(frozen=True, slots=True)
class Room:
    """What a server can hold; None where it does not tell."""

    capacity_tokens: int | None = None
    max_running_requests: int | None = None
    usable_share: float = 0.95
    """SGLang admits up to a token usage of 0.92 to 0.98, so that running requests can grow (field report)."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Long-run means over the requests of one lane, by the token clock of its sessions."""

    output_tokens: float
    """Mean answer length."""
    tokens_each: float
    """KV tokens of its own that a running request holds: E[(P + L/2) L] / E[L], shared prefix apart."""


def in_flight(lane: Lane) -> InFlight | None:
    """The lane's long-run means; None when a length is unknown, or when arrivals decide how many run."""
    if lane.gaps_s:
        return None
    requests = [request for session in lane.sessions for request in session]
    if any(request.output_tokens is None for request in requests):
        return None
    output = np.array([request.output_tokens for request in requests], dtype=float)
    own = np.array([request.prompt_tokens - request.prefix_tokens for request in requests], dtype=float)
    total = output.sum()
    return InFlight(
        output_tokens=float(output.mean()),
        tokens_each=float((own * output + output**2 / 2).sum() / total),
    )


@dataclass(frozen=True, slots=True)
class Mix:
    """How much the requests in flight differ from one draw of them to the next, and how long they stay."""

    spread_share: float
    """Standard deviation of the tokens that they hold together, over the mean: with heavy tails a few long ones decide
    it, however evenly they are drawn."""
    memory_tokens: float
    """Decode steps after which the requests in flight are others: E[L^2] / E[L]."""


def mix_of(lanes: Sequence[Lane], room: Room) -> Mix | None:
    """The closed lanes' mix, from first waves drawn with many seeds; None when a length is unknown or none runs."""
    counts = [round(count) for count in running_slots(lanes, room)]
    known = [(lane, count) for lane, count in zip(lanes, counts, strict=True) if count and in_flight(lane)]
    if not known:
        return None
    held = [sum(_held_tokens(lane, count, seed) for lane, count in known) for seed in range(_MIX_DRAWS)]
    sessions = (session for lane, _ in known for session in lane.sessions)
    lengths = np.array([request.output_tokens for session in sessions for request in session], dtype=float)
    memory_tokens = float((lengths**2).sum() / lengths.sum())
    return Mix(float(np.std(held)) / max(1.0, float(np.mean(held))), memory_tokens)


def _held_tokens(lane: Lane, count: int, seed: int) -> int:
    requests = (session[0] for session in aged_sessions(lane, count, seed))
    return sum(request.prompt_tokens - request.prefix_tokens + request.age_tokens for request in requests)


def arriving_tokens_per_s(lane: Lane) -> float:
    """Answer tokens that an open lane asks for per second; 0 if it is closed, or if lengths are unknown."""
    lengths = [request.output_tokens for session in lane.sessions for request in session]
    if not lane.gaps_s or None in lengths:
        return 0.0
    return sum(length or 0 for length in lengths) / len(lane.sessions) / max(1e-9, float(np.mean(lane.gaps_s)))


def arrival_variance(lanes: Sequence[Lane]) -> float:
    """By how much the answer tokens that open lanes ask for vary: their variance over t seconds, divided by t.

    A renewal-reward process, for t well above the time between arrivals: lambda E[S]^2 (cv^2 of the gaps + cv^2 of S),
    S being the tokens of a session. 0 without open lanes, or if lengths are unknown.
    """
    total = 0.0
    for lane in lanes:
        if not arriving_tokens_per_s(lane):
            continue
        gaps = np.array(lane.gaps_s)
        sizes = np.array([sum(request.output_tokens or 0 for request in session) for session in lane.sessions])
        total += (sizes.mean() ** 2 * gaps.var() / gaps.mean() ** 2 + sizes.var()) / gaps.mean()
    return float(total)


def running_slots(lanes: Sequence[Lane], room: Room) -> list[float]:
    """How many clients of each lane are running, not waiting, in the long run; 0 if lengths are unknown.

    First come, first served: all lanes wait equally long, w, so that of a lane's N clients N L / (w + L)
    run (Little). w is the least wait, in decode steps, at which the running requests fit in the room; found
    by bisection.
    """
    means = [in_flight(lane) or InFlight(0.0, 0.0) for lane in lanes]
    slots = np.array([lane.slots for lane in lanes], dtype=float)
    length = np.array([mean.output_tokens for mean in means])
    each = np.array([mean.tokens_each for mean in means])
    tokens_left = room.usable_share * (room.capacity_tokens or np.inf) - _shared_prefix_tokens(lanes)
    most = room.max_running_requests or np.inf

    def running(wait: float) -> Floats:
        return np.asarray(slots * length / np.maximum(wait + length, 1e-9))

    def fits(wait: float) -> bool:
        now = running(wait)
        return bool(now @ each <= tokens_left and now.sum() <= most)

    low, high = 0.0, _LONGEST_WAIT_STEPS
    while not fits(low) and high - low > 1.0:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return [float(count) for count in running(low)]


def pool_of(lanes: Sequence[Lane], room: Room) -> Pool | None:
    """The pool in the long run, from the workload alone; None when an answer's length is unknown."""
    running = running_slots(lanes, room)
    known = [(mean.tokens_each, count) for lane, count in zip(lanes, running, strict=True) if (mean := in_flight(lane))]
    if len(known) < len(lanes):
        return None
    each = sum(tokens * count for tokens, count in known) / sum(count for _, count in known)
    return Pool(each, _shared_prefix_tokens(lanes), room.max_running_requests)


def _shared_prefix_tokens(lanes: Sequence[Lane]) -> int:
    """KV tokens of all prefixes that requests share, each counted once."""
    requests = (request for lane in lanes for session in lane.sessions for request in session)
    prompts = (request.prompt for request in requests if isinstance(request.prompt, Synthetic))
    shared = {prompt.segments[0] for prompt in prompts if prompt.segments[0].shared}
    return sum(segment.tokens for segment in shared)


def aged_sessions(lane: Lane, count: int, seed: int) -> list[Session]:
    """`count` sessions in mid-life: a turn chosen in proportion to its length, at a uniform age.

    The lengths must be known. Any leading part of the list is as evenly spread as the whole.
    """
    tails = [session[turn:] for session in lane.sessions for turn in range(len(session))]
    output = np.array([tail[0].output_tokens for tail in tails], dtype=np.int64)
    prompt = np.array([tail[0].prompt_tokens for tail in tails], dtype=np.int64)
    line = np.array([place for part in strata(output, prompt, round(count**0.5)) for place in part], dtype=np.int64)
    start, shift, phase = np.random.default_rng(seed).random(3)
    edges = np.cumsum(output[line])
    points = (np.arange(count) + start) / max(1, count) * edges[-1]
    chosen = line[np.searchsorted(edges, points, side="right")]
    ages = np.floor(kronecker(count, GOLDEN, shift) * output[chosen]).astype(int)
    spread = np.argsort(kronecker(count, SILVER, phase), kind="stable")
    return [_in_mid_life(tails[int(chosen[at])], int(ages[at])) for at in spread]


def _in_mid_life(tail: Session, age_tokens: int) -> Session:
    return (tail[0].aged(age_tokens), *tail[1:])
