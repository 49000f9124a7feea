"""The simulated box in virtual time: a Testbed in which a two-hour study takes about a second.

It sees of the engine what a real server would show: the start-up log is read by `launcher.logs`, a death is judged by
`launcher.failures`, and levels are measured by the same controller as on a real box.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.clock import ManualClock
from launcher.config import FlagValue, ServerConfig
from launcher.failure import Failure
from launcher.failures import Evidence, classify
from launcher.logs import read_timeline
from launcher.simulated.box import BoxStart, VirtualBox
from launcher.simulated.engine import Engine
from launcher.simulated.events import Crashed
from tuner.measure.virtual import measure_level
from tuner.steady import Slo
from tuner.testbed import LevelLimits, Started
from tuner.trial import LevelResult, Setting
from tuner.workload import Workload


class VirtualTestbed:
    """One simulated box. Its clock is moved by what it does, so that it may be the daemon's clock too."""

    def __init__(
        self,
        box: VirtualBox,
        workload: Workload,
        *,
        model_path: str = "simulated",
        flags: Mapping[str, FlagValue] | None = None,
        clock: ManualClock | None = None,
        slo: Slo | None = None,
        seed: int = 0,
    ) -> None:
        self._box = box
        self._workload = workload
        self._model_path = model_path
        self._flags = dict(flags or {})
        self._slo = slo
        self._seed = seed
        self._engine: Engine | None = None
        self._log = ""
        self.clock = clock or ManualClock()

    async def start(self, setting: Setting, *, dummy_weights: bool = False) -> Started:
        began = self._box.start(self._config(setting, dummy_weights))
        self._engine, self._log = began.engine, began.log
        await self.clock.sleep(began.took_s)
        timeline = read_timeline(began.log, began.launched_unix_s)
        return Started(timeline, _failure_of(began), clean_slate_s=0.0, start_s=began.took_s)

    def _config(self, setting: Setting, dummy_weights: bool) -> ServerConfig:
        flags = {**self._flags, **setting.flags}
        if dummy_weights:
            flags["load-format"] = "dummy"
        return ServerConfig(
            model_path=self._model_path,
            mem_fraction_static=setting.mem_fraction_static,
            kv_cache_dtype=setting.kv_cache_dtype,
            hicache_size_gb=setting.hicache_size_gb,
            flags=flags,
        )

    async def measure(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        if self._engine is None:
            raise RuntimeError("measure() needs a server that start() has made ready")
        began_s = self._engine.now_s
        result = measure_level(self._engine, self._workload, concurrency, limits, slo=self._slo, seed=self._seed)
        await self.clock.sleep(self._engine.now_s - began_s)
        if isinstance(result, Crashed):
            return _verdict(self._log + result.log_text, result.exit_code)
        return result

    async def stop(self) -> float:
        took_s = self._box.stop()
        self._engine = None
        await self.clock.sleep(took_s)
        return took_s


def _failure_of(began: BoxStart) -> Failure | None:
    return None if began.exit_code is None else _verdict(began.log, began.exit_code)


def _verdict(log: str, exit_code: int) -> Failure:
    failure = classify(Evidence(log=log, exit_code=exit_code))
    if failure is None:
        raise RuntimeError(f"a simulated server ended with {exit_code} and its log shows no failure")
    return failure
