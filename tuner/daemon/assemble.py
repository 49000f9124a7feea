"""From a study directory to a running daemon: locks, environment, orphans, prior, searcher, testbed."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cleanslate import Baseline, take_baseline
from launcher.clock import WallClock
from launcher.gpus import ChosenGpus, GpuReader, GpuSample
from launcher.host import read_host
from launcher.nvml import open_gpus
from launcher.redact import redact
from launcher.simulated.presets import load_preset
from launcher.version import SglangBuild, detect_build
from tuner.budget import Budget, longest_level_s
from tuner.daemon.earlier import earlier_lessons
from tuner.daemon.interrupts import Interrupts
from tuner.daemon.loop import Daemon, Ending, Limits
from tuner.daemon.orphans import reap_left
from tuner.daemon.publish import Publisher
from tuner.daemon.refusals import (
    hicache_beyond_host,
    refuse_beyond_context,
    refuse_dtypes,
    refuse_missing_gpus,
    refuse_unsimulated,
)
from tuner.daemon.scribe import Scribe
from tuner.daemon.trial import Bench
from tuner.errors import StudyFileError
from tuner.export import warning
from tuner.journal import Journal
from tuner.journal.codec import from_json_value
from tuner.journal.home import LOCK, home
from tuner.journal.lock import Lock, lock_gpus
from tuner.journal.view import Environment
from tuner.live import LiveTestbed
from tuner.memory import HostMemory, MemoryPrior, read_geometry
from tuner.memory.geometry import GIB
from tuner.memory.host import GB
from tuner.progress.scene import Screen, StudyNow
from tuner.search import Searcher, SearchOptions, shape_of
from tuner.study_file import Study, build_study
from tuner.trial import TrialResult
from tuner.version import kvtune_version
from tuner.workload import Workload, load_workload

GPU_STATE = "gpus"
"""Where a simulated study keeps its GPUs, in its own directory."""
VERSION_LIMIT_S = 60.0
SAMPLED_REQUESTS = 256
"""So many say what a workload is."""
_FINGERPRINTED = ("config.json", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class World:
    """What was found on this machine for one study."""

    study: Study
    directory: Path
    build: SglangBuild
    gpus: GpuReader
    samples: tuple[GpuSample, ...]
    workload: Workload


async def run_study(directory: Path, screen: Screen, interrupts: Interrupts, *, serve_best: bool = False) -> Ending:
    """Work on the study in `directory` until it ends. What is in the way is an exception, one sentence."""
    with _locked(directory / LOCK, f"study {directory.name}"), interrupts.installed():
        journal = Journal(directory)
        try:
            return await _run(journal, screen, interrupts, serve_best)
        finally:
            screen.close()
            journal.close()


async def _run(journal: Journal, screen: Screen, interrupts: Interrupts, serve_best: bool) -> Ending:
    study = build_study(journal.fact("study"), journal.directory.name)
    clock = WallClock(study.clock_speed)
    budget = Budget(study.budget, journal.spent_s(), clock, clock.now_s())
    scribe = Scribe(journal, screen, budget)
    world = find_world(study, journal.directory)
    locks = lock_gpus([gpu.uuid for gpu in world.samples if gpu.uuid and not gpu.simulated], home())
    try:
        screen.open(_study_now(world), budget.spent_s)
        _note_environment(journal, world)
        _warn(world, scribe)
        await _tidy_up(journal, clock, scribe)
        searcher = build_searcher(world, _earlier(journal, study, scribe))
        testbed = LiveTestbed(
            study=study,
            build=world.build,
            gpus=world.gpus,
            workload=world.workload,
            directory=journal.directory,
            token=journal.fact("token"),
            clock=clock,
            observer=scribe,
            baseline=_baseline(journal, world),
        )
        publisher = Publisher(journal, searcher, scribe, Path(study.output))
        bench = Bench(journal, searcher, testbed, budget, clock, scribe, interrupts, publisher)
        limits = Limits(study.max_trials, study.max_crashes, serve_best)
        return await Daemon(bench, limits).run()
    finally:
        if not (serve_best and journal.fact("done")):
            await _tidy_up(journal, clock, scribe)
        world.gpus.close()
        for lock in locks:
            lock.release()


def _earlier(journal: Journal, study: Study, scribe: Scribe) -> tuple[TrialResult, ...]:
    """What earlier studies teach this one; said aloud, since it decides where the search begins."""
    lessons = earlier_lessons(journal, study)
    for lesson in lessons:
        scribe.say("earlier", lesson.sentence)
    return tuple(trial for lesson in reversed(lessons) for trial in lesson.trials)


def _warn(world: World, scribe: Scribe) -> None:
    """Say before hours are spent that the answer will need more than one file, and what will not be tried."""
    told = {"export": warning(world.study, world.build), "space": hicache_beyond_host(world.study, _host(world))}
    for kind, sentence in told.items():
        if sentence is not None:
            scribe.say(kind, sentence)


async def _tidy_up(journal: Journal, clock: WallClock, scribe: Scribe) -> None:
    ended = await reap_left(journal, clock)
    if ended:
        scribe.say("resume", f"{ended} server of an earlier run was ended")


def find_world(study: Study, directory: Path) -> World:
    """Look at the build, the GPUs and the workload. Raises UsageError, WorkloadError or StudyFileError."""
    gpu_state = directory / GPU_STATE
    if study.simulated:
        _prepare_simulated(study, gpu_state)
    build = _ask_build(study, gpu_state)
    gpus = open_gpus(f"simulated:{gpu_state}" if study.simulated else None)
    refuse_unsimulated(study)
    refuse_missing_gpus(study, gpus.read(memory_only=True))
    if study.gpus is not None:
        gpus = ChosenGpus(gpus, study.gpus)
    samples = gpus.read()
    refuse_dtypes(study, build.version, samples)
    workload = load_workload(study.workload, seed=study.seed)
    refuse_beyond_context(study, workload)
    return World(study, directory, build, gpus, samples, workload)


def _ask_build(study: Study, gpu_state: Path) -> SglangBuild:
    """Which SGLang the study's command starts. Raises UsageError when it does not say."""
    return detect_build(
        study.launch_command(gpu_state),
        study.server_env(),
        timeout_s=VERSION_LIMIT_S,
        declared_version=study.sglang_version,
    )


def _prepare_simulated(study: Study, gpu_state: Path) -> None:
    from launcher.simulated.gpus import prepare_gpu_state

    prepare_gpu_state(gpu_state, load_preset(study.preset))


def _baseline(journal: Journal, world: World) -> Baseline:
    """The machine before the study's first start; a resumed study must get back to that, not to what it finds."""
    known = journal.fact("baseline")
    if known is not None:
        return from_json_value(Baseline, known)
    baseline = take_baseline(world.gpus)
    journal.set_fact("baseline", baseline)
    return baseline


def build_searcher(world: World, earlier: tuple[TrialResult, ...] = ()) -> Searcher:
    """The search with what this machine, model and workload tell it beforehand, and `earlier` studies' trials."""
    study = world.study
    shape = shape_of(world.workload.sample(512))
    options = SearchOptions(
        tokens_in_flight=shape.tokens_in_flight,
        reused_prefix_share=shape.reused_prefix_share,
        probes=not study.simulated and study.flags.get("load-format") is None,
        current=study.start_from.build() if study.start_from is not None else None,
        earlier=earlier,
    )
    level_s = longest_level_s(study.budget)
    options = replace(options, expected_level_s=min(options.expected_level_s, level_s), level_budget_s=level_s)
    if study.until_gain_below is not None:
        options = replace(options, until_gain_below=study.until_gain_below)
    prior = _prior(world, shape.longest_request_tokens)
    return Searcher(study.space.build(), prior=prior, options=options, seed=study.seed)


def _prior(world: World, longest_request_tokens: float) -> MemoryPrior:
    study = world.study
    sizes = [gpu.memory_total_bytes for gpu in world.samples if gpu.memory_total_bytes]
    path = Path(study.model_path)
    return MemoryPrior(
        geometry=read_geometry(path) if (path / "config.json").is_file() else None,
        gpu_total_gib=min(sizes) / GIB if sizes else None,
        tp_size=study.tp_size,
        dp_size=study.pinned.dp_size,
        dp_attention=study.pinned.dp_attention,
        chunk_tokens=_pinned_number(study, "chunked-prefill-size"),
        graph_batch=_graph_batch(study),
        captures_graphs=study.flags.get("device") != "cpu" and study.pinned.decode_graphs,
        max_total_tokens=_pinned_number(study, "max-total-tokens"),
        host=_host(world),
        shortest_pool_tokens=longest_request_tokens,
    )


def _pinned_number(study: Study, flag: str) -> int | None:
    """A pinned flag's value; None when it is not pinned or switched off (-1)."""
    value = study.flags.get(flag)
    return value if isinstance(value, int) and value > 0 else None


def _graph_batch(study: Study) -> int | None:
    """The largest decode batch with a graph, where the user pins it; without graphs every batch is above it."""
    if not study.pinned.decode_graphs:
        return 1
    return _pinned_number(study, "cuda-graph-max-bs-decode") or _pinned_number(study, "cuda-graph-max-bs")


def _host(world: World) -> HostMemory | None:
    """The simulated box has a host of its own, which this machine's memory says nothing about."""
    ranks = world.study.pinned.rank_count
    if world.study.simulated:
        available = round(load_preset(world.study.preset).box.host_available_gb * GB)
    else:
        available = read_host().available_bytes
    return None if available is None else HostMemory(available, ranks, world.build.version)


def _note_environment(journal: Journal, world: World) -> None:
    """Write down what the study runs on. Raises StudyFileError when a resumed study finds another world."""
    found = _environment(world)
    known = journal.fact("environment")
    if known is not None:
        _refuse_change(from_json_value(Environment, known), found, journal.directory.name)
    journal.set_fact("environment", found)
    journal.set_fact("build", world.build)


def _environment(world: World) -> Environment:
    study = world.study
    return Environment(
        kvtune_version=kvtune_version(),
        sglang_version=world.build.version,
        command=redact(list(study.public_command)),
        model_fingerprint=_model_fingerprint(study),
        workload_fingerprint=_workload_fingerprint(world),
        gpu_names=tuple(gpu.name for gpu in world.samples),
        gpu_uuids=tuple(gpu.uuid or "" for gpu in world.samples),
        gpu_memory_bytes=tuple(gpu.memory_total_bytes or 0 for gpu in world.samples),
        driver_version=_driver_version(),
        host_name=socket.gethostname(),
        simulated=study.simulated,
    )


def _driver_version(told: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """`550.54.15` of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ..."; None without a driver."""
    try:
        found = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", told.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[0] if found else None


def _refuse_change(known: Environment, found: Environment, study_id: str) -> None:
    """Rates of two builds, models or boxes must not be compared as if they were one."""
    for what, before, now in (
        ("SGLang", known.sglang_version, found.sglang_version),
        ("model", known.model_fingerprint, found.model_fingerprint),
        ("GPUs", ", ".join(known.gpu_names), ", ".join(found.gpu_names)),
        ("workload", known.workload_fingerprint, found.workload_fingerprint),
    ):
        if before != now:
            raise StudyFileError(
                f"study {study_id}: was measured with {what} {before or 'none'}, here is {now or 'none'};"
                " begin a new study"
            )


def _model_fingerprint(study: Study) -> str | None:
    if not study.simulated:
        return fingerprint(Path(study.model_path))
    return hashlib.sha256(load_preset(study.preset).model_dump_json().encode()).hexdigest()[:16]


def _workload_fingerprint(world: World) -> str:
    """Of requests drawn with the same seed whatever the study's own is."""
    study = world.study
    plain = world.workload if study.seed == 0 else load_workload(study.workload, seed=0)
    return hashlib.sha256(repr(plain.sample(SAMPLED_REQUESTS)).encode()).hexdigest()[:16]


def fingerprint(model: Path) -> str | None:
    """Of the files that decide a model's shape and size; None when the model is a name."""
    digest = hashlib.sha256()
    files = [model / name for name in _FINGERPRINTED if (model / name).is_file()]
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16] if files else None


def _study_now(world: World) -> StudyNow:
    study = world.study
    return StudyNow(world.directory.name, study.model_path, study.simulated, study.budget, study.clock_speed)


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    lock = Lock(path, what)
    try:
        yield
    finally:
        lock.release()
