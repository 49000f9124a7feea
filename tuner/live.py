"""The real box: a Testbed that starts a server's process through the launcher and loads it over HTTP.

The simulated engine's process goes the same way; only its launch command and its GPUs differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.cleanslate import Baseline, prove
from launcher.clock import Clock
from launcher.config import FlagValue, ServerConfig
from launcher.errors import StartFailed
from launcher.failure import Culprit, Direction, Failure, Kind, Stage
from launcher.gpus import GpuReader
from launcher.observe.read import ServerReader
from launcher.ports import free_port
from launcher.server import LaunchRequest, Server, ServerRecord, StopLimits, launch
from launcher.timeline import Timeline
from launcher.version import SglangBuild
from tuner.measure.live import ServerDied, measure_level
from tuner.steady import Moment, Slo
from tuner.study_file import PORT, Study
from tuner.testbed import LevelLimits, Observer, Started
from tuner.trial import LevelEnd, LevelResult, Setting
from tuner.workload import Workload

SAMPLES_EVERY_S = 5.0
SGLANG_HOST_RESERVE_BYTES = 10 * 2**30
MEASURED_WITH: Mapping[str, FlagValue] = {"enable-metrics": True}
"""Flags of every trial that are not in the answer: the counters that a level is read from are off by default."""
HANGING = StopLimits(term_s=0.0)
"""SGLang drains before it ends, without a deadline: a server that finishes nothing is not waited for."""
LOGS = "servers"
"""The servers' own logs, in the study's directory: `001.log` is the first start's."""


class LiveTestbed:
    """One box and one study. A server that it started is ended by `stop`, whatever happened in between."""

    def __init__(
        self,
        *,
        study: Study,
        build: SglangBuild,
        gpus: GpuReader,
        workload: Workload,
        directory: Path,
        token: str,
        clock: Clock,
        observer: Observer,
        baseline: Baseline,
    ) -> None:
        self._study = study
        self._build = build
        self._gpus = gpus
        self._workload = workload
        self._directory = directory
        self._token = token
        self._clock = clock
        self._observer = observer
        self._api_key = os.environ.get(study.api_key_env) if study.api_key_env else None
        self._server: Server | None = None
        self._hangs = False
        self._last_port = 0
        self._sampled_s = float("-inf")
        self._baseline = baseline
        self._left: tuple[ServerRecord, ...] = ()
        """Launches of which something did not end: it is waited for before the next start."""

    async def start(self, setting: Setting, *, dummy_weights: bool = False, keep: bool = False) -> Started:
        """Prove the clean slate, start, wait until it serves, and check the KV dtype in use.

        Raises CleanSlateError while something that is not ours is in the way, UsageError for flags that the build
        lacks.
        """
        config = self._config(setting, dummy_weights)
        clean_s = await self._prove_clean(config)
        began_s = self._clock.now_s()
        await self._launch(config, self._port(keep))
        server = self._running()
        self._observer.on_server(server.record)
        self._observer.on_stage("starting")
        try:
            timeline = await server.wait_ready()
            failure = _other_dtype(setting, timeline)
            notes = await asyncio.to_thread(self._not_in_effect, server.url, config)
        except StartFailed as error:
            timeline, failure, notes = server.log.timeline(), error.failure, ()
        self._observer.on_server(server.record)
        return Started(timeline, failure, clean_s, self._clock.now_s() - began_s, notes)

    def _not_in_effect(self, url: str, config: ServerConfig) -> tuple[str, ...]:
        """Flags that SGLang dropped without a word."""
        with ServerReader(url, self._api_key) as reader:
            return reader.not_in_effect(config)

    async def measure(self, concurrency: int, limits: LevelLimits) -> LevelResult | Failure:
        server = self._running()
        with ServerReader(server.url, self._api_key, clock=self._clock) as reader:
            result = await measure_level(
                server.url,
                self._workload,
                concurrency,
                limits,
                self._clock,
                gpus=self._gpus,
                reader=reader,
                is_dead=server.poll,
                api_key=self._api_key,
                slo=_slo(self._study),
                seed=self._study.seed,
                on_moment=self._sampled,
            )
        if isinstance(result, ServerDied):
            return result.failure
        self._hangs = result.end is LevelEnd.STALLED
        return result

    async def stop(self) -> float:
        server, self._server = self._server, None
        if server is None:
            return 0.0
        report = await server.stop(HANGING if self._hangs else StopLimits())
        self._hangs = False
        if report.clean:
            self._observer.on_server(None)
        else:
            self._left = (server.record,)
        return report.took_s

    def _port(self, keep: bool) -> int:
        """A pinned port is for the server that stays: trials take a new one each, which no earlier client can reach."""
        pinned = self._study.flags.get(PORT) if keep else None
        return pinned if isinstance(pinned, int) else free_port({self._last_port})

    async def _launch(self, config: ServerConfig, port: int) -> None:
        """Launch, and know the server even when we are cancelled between its fork and its return."""
        launching = asyncio.ensure_future(launch(self._request(config, port), self._clock))
        try:
            self._server = await asyncio.shield(launching)
        except asyncio.CancelledError:
            self._server = await launching
            raise

    async def _prove_clean(self, config: ServerConfig) -> float:
        self._observer.on_stage("clean slate")
        proof = await prove(
            self._baseline,
            self._gpus,
            self._clock,
            ours=self._left,
            host_needed_bytes=_host_bytes(config),
            on_wait=lambda reason: self._observer.on_stage("clean slate", reason),
        )
        self._left = ()
        return proof.took_s

    def _request(self, config: ServerConfig, port: int) -> LaunchRequest:
        self._last_port = port
        logs = self._directory / LOGS
        logs.mkdir(exist_ok=True)
        return LaunchRequest(
            command=self._study.launch_command(self._directory / "gpus"),
            config=config,
            build=self._build,
            port=port,
            env=self._study.server_env(),
            log_path=logs / f"{len(list(logs.iterdir())) + 1:03}.log",
            token=self._token,
            gpus=self._gpus,
        )

    def _config(self, setting: Setting, dummy_weights: bool) -> ServerConfig:
        config = self._study.server_config(setting)
        secret = {"api-key": self._api_key} if self._api_key else {}
        probe = {"load-format": "dummy"} if dummy_weights else {}
        return replace(config, flags={**MEASURED_WITH, **config.flags, **probe, **secret})

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("measure() needs a server that start() has made ready")
        return self._server

    def _sampled(self, moment: Moment) -> None:
        if moment.now_s - self._sampled_s < SAMPLES_EVERY_S:
            return
        self._sampled_s = moment.now_s
        self._observer.on_sample(_gauges(moment))


def _gauges(moment: Moment) -> Mapping[str, float | int | None]:
    """What the journal keeps of one moment: the server's gauges summed over its DP ranks, and the poorest GPU."""
    ranks = moment.server.ranks if moment.server else ()
    free = [gpu.memory_free_bytes for gpu in moment.gpus if gpu.memory_free_bytes is not None]
    return {
        "running_requests": _sum(rank.running_requests for rank in ranks),
        "queued_requests": _sum(rank.queued_requests for rank in ranks),
        "used_tokens": _sum(rank.used_tokens for rank in ranks),
        "capacity_tokens": _sum(rank.capacity_tokens for rank in ranks),
        "gpu_memory_free_min_bytes": min(free, default=None),
    }


def _host_bytes(config: ServerConfig) -> int:
    """What a start takes of the host for HiCache: SGLang always leaves 10 GiB (pool_host, 0.5.6-0.5.23)."""
    pools_bytes = config.hicache_size_gb * 10**9 * config.rank_count
    return pools_bytes + SGLANG_HOST_RESERVE_BYTES if pools_bytes else 0


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _slo(study: Study) -> Slo | None:
    asked = Slo(study.slo.ttft_p95_s, study.slo.itl_p95_s, study.slo.e2e_p95_s)
    return asked if asked.any else None


def _other_dtype(setting: Setting, timeline: Timeline) -> Failure | None:
    """The allowlist is about the dtype in use: a server that took another one must not be measured."""
    in_use = timeline.memory.kv_cache_dtype
    if in_use is None or in_use == setting.kv_cache_dtype:
        return None
    return Failure(
        kind=Kind.CONFIG_ERROR,
        stage=Stage.KV_POOL,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.CONFIGURATION,
        retry=False,
        sentence=f"asked for KV dtype {setting.kv_cache_dtype}, SGLang took {in_use}: it is not measured",
    )
