"""The reference's clients against the simulated engine, in virtual time and without noise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.calibration.reference import Lengths
from launcher.config import ServerConfig
from launcher.simulated.box import BoxStart, VirtualBox
from launcher.simulated.engine import Engine
from launcher.simulated.events import (
    Crashed,
    DecodeLogged,
    Finished,
    Gauges,
    LogRecord,
    PrefillLogged,
    SimRequest,
)
from launcher.simulated.presets import load_preset, with_overrides

_QUIET = {"noise.start_sd_share": 0.0, "noise.drift_sd_share": 0.0, "noise.transient_sd_share": 0.0}


def start(preset: str, config: ServerConfig) -> BoxStart:
    """One start without noise."""
    box = VirtualBox(with_overrides(load_preset(preset), _QUIET), seed=1, record_log=True)
    return box.start(config)


@dataclass(slots=True)
class Client:
    """A closed loop of `concurrency` clients, all starting together."""

    engine: Engine
    lengths: Lengths
    seed: int
    crash: Crashed | None = None
    finished: int = 0
    _sent: int = 0

    def begin(self, concurrency: int) -> None:
        for _ in range(concurrency):
            self.engine.submit(self._next())

    def run_until(self, until_s: float) -> None:
        while self.engine.now_s < until_s and self.crash is None:
            for event in self.engine.advance(until_s):
                if isinstance(event, Crashed):
                    self.crash = event
                elif isinstance(event, Finished):
                    self.finished += 1
                    self.engine.submit(self._next())

    def sample(self, until_s: float, every_s: float) -> Iterator[Gauges]:
        """Gauges every so many seconds."""
        at_s = self.engine.now_s
        while at_s < until_s and self.crash is None:
            at_s += every_s
            self.run_until(at_s)
            yield self.engine.gauges()

    def _next(self) -> SimRequest:
        self._sent += 1
        chance = random.Random(f"{self.seed}:{self._sent}")
        lengths = self.lengths
        prompt = max(1, round(chance.uniform(-1, 1) * lengths.prompt_half_width + lengths.prompt_mean))
        output = max(1, round(chance.uniform(-1, 1) * lengths.output_half_width + lengths.output_mean))
        own = (self._sent, prompt)
        if not lengths.shared_prefixes:
            return SimRequest(str(self._sent), (own,), output)
        prefix = (-1 - chance.randrange(lengths.shared_prefixes), lengths.shared_prefix_tokens)
        return SimRequest(str(self._sent), (prefix, own), output)


def decode_rates(log: list[LogRecord], steady_after_s: float) -> tuple[float, float]:
    """Mean gen throughput of the lines without a prefill before them, and of the lines of the steady
    state.
    """
    pure: list[float] = []
    mixed: list[float] = []
    prefilled = True
    for record in log:
        if isinstance(record, PrefillLogged):
            prefilled = True
        elif isinstance(record, DecodeLogged):
            if not prefilled:
                pure.append(record.gen_tokens_per_s)
            if record.at_s > steady_after_s:
                mixed.append(record.gen_tokens_per_s)
            prefilled = False
    return _mean(pure[:5]), _mean(mixed)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
