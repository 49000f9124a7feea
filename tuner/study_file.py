"""The study file: what the user asks for. Unknown keys are refused with the nearest valid one.

Every value has a default, so that a budget alone makes a study: on the simulated engine if no model is named.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from launcher.config import FlagValue, ServerConfig
from launcher.yaml_file import read_yaml
from tuner.budget import parse_duration
from tuner.errors import StudyFileError
from tuner.space import Space
from tuner.study_faults import check_sizes, sentence_of
from tuner.trial import Setting

DEFAULT_COMMAND = ("python", "-m", "sglang.launch_server")
DEFAULT_PRESET = "kimi-k2.5-8x-rtx-pro-6000"
DEFAULT_SPEED = 60.0
"""Of the simulated engine's clock: two hours take two minutes."""
DEFAULT_WORKLOAD = "random:in=2000,out=1000,cv=0.5"

PORT = "port"
"""The pinned flag that belongs to the server that stays (--serve-best), and to no trial."""
_ENGINE_KEYS = {"model", "command", "engine", "preset"}
"""A file that has none of these forgot what to tune: it must not end up on the simulated engine unawares."""
_SEARCHED = ("mem-fraction-static", "kv-cache-dtype", "hicache-size")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def _bounds(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _whole_gb(value: object) -> tuple[object, ...]:
    """YAML 1.1 reads a bare `off` as false."""
    sizes = value if isinstance(value, list) else [value]
    if any(size is True or size == "on" for size in sizes):
        raise StudyFileError("space: hicache-size: on: is no size; write GB of host memory per rank, or off")
    return tuple(0 if size in (False, "off", "false") else size for size in sizes)


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _words(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpaceSpec(BaseModel):
    """What is searched, by the flags' own names; any further key is a flag with the values to try."""

    model_config = ConfigDict(extra="allow", frozen=True)

    mem_fraction_static: Annotated[tuple[float, float] | float, BeforeValidator(_bounds)] = Field(
        default=(0.70, 0.95), alias="mem-fraction-static"
    )
    kv_cache_dtype: Annotated[tuple[str, ...], BeforeValidator(_many)] = Field(
        default=("bfloat16",), alias="kv-cache-dtype"
    )
    hicache_size: Annotated[tuple[int, ...], BeforeValidator(_whole_gb)] = Field(default=(0,), alias="hicache-size")
    concurrency: Annotated[tuple[int, int] | int, BeforeValidator(_bounds)] = (8, 256)

    def build(self) -> Space:
        """The space to search. Raises StudyFileError for values that cannot be searched."""
        concurrency = self.concurrency
        for name in self.model_extra or {}:
            _check_flag_name(name)
        further = {name: _many(value) for name, value in (self.model_extra or {}).items()}
        return Space(
            mem_fraction=self.mem_fraction_static,
            kv_cache_dtypes=self.kv_cache_dtype,
            hicache_sizes_gb=self.hicache_size,
            concurrency=concurrency if isinstance(concurrency, tuple) else (concurrency, concurrency),
            further=further,
        )


class StartFrom(BaseModel):
    """What the user runs today, of the flags that are searched; a flag that is not named is at SGLang's default."""

    model_config = ConfigDict(extra="allow", frozen=True)

    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1, alias="mem-fraction-static")
    kv_cache_dtype: str | None = Field(default=None, alias="kv-cache-dtype")
    hicache_size: Annotated[int | None, BeforeValidator(lambda size: _whole_gb(size)[0])] = Field(
        default=None, ge=0, alias="hicache-size"
    )

    def build(self) -> Setting:
        dtype, hicache_gb = self.kv_cache_dtype or "bfloat16", self.hicache_size or 0
        return Setting(self.mem_fraction_static, dtype, hicache_gb, dict(self.model_extra or {}))


class Slo(_Section):
    """Limits on the 95th percentile of a response's times, in seconds."""

    ttft_p95_s: float | None = Field(default=None, gt=0)
    itl_p95_s: float | None = Field(default=None, gt=0)
    e2e_p95_s: float | None = Field(default=None, gt=0)


class Study(_Section):
    """One study as the user asked for it. Paths stay as written; `${NAME}` is taken from the environment."""

    model: str | None = None
    """Path or name, as SGLang's --model-path takes it. None: the simulated engine."""
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = DEFAULT_COMMAND
    """What starts SGLang, before its flags."""
    sglang_version: str | None = None
    """For a command that cannot be asked for its version."""
    engine: Literal["real", "simulated"] = "real"
    preset: str = DEFAULT_PRESET
    """The simulated box and model: a shipped name or a YAML file."""
    clock_speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Study seconds per wall second; above 1 only for the simulated engine."""
    flags: Mapping[str, FlagValue] = Field(default_factory=dict)
    """SGLang flags that stay as they are, by their names with dashes."""
    env: Mapping[str, str] = Field(default_factory=dict)
    space: SpaceSpec = SpaceSpec()
    start_from: StartFrom | None = None
    """The first start: what runs today. None: SGLang's own default."""
    warm_start: bool | str = True
    """What earlier studies on this model, GPUs and build teach: all that fit, one by its name, or none (false)."""
    workload: str | tuple[Mapping[str, Any], ...] = DEFAULT_WORKLOAD
    """A spec such as `random:in=1000,out=500,cv=0.5`, the path of a file of prompts, or named groups."""
    slo: Slo = Slo()
    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    """Indices of the GPUs to use; None: all."""
    budget: Annotated[float, BeforeValidator(_seconds)] = Field(default=7_200.0, gt=0, allow_inf_nan=False)
    """Study seconds."""
    max_trials: int | None = Field(default=None, ge=1)
    max_crashes: int | None = Field(default=None, ge=1)
    until_gain_below: float | None = Field(default=None, ge=0, lt=1)
    """Stop when the best expected gain falls below this share (0.01 is 1%)."""
    seed: int = Field(default=0, ge=0)
    output: str = "best-config.yaml"
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's API key."""

    @model_validator(mode="before")
    @classmethod
    def _engine_follows_model(cls, raw: Any) -> Any:
        """No model and no command: the simulated engine, at a speed at which two hours take two minutes."""
        if not isinstance(raw, dict):
            return raw
        told = dict(raw)
        if not told.get("model") and not told.get("command"):
            told.setdefault("engine", "simulated")
        if told.get("engine") == "simulated":
            told.setdefault("clock_speed", DEFAULT_SPEED)
        return told

    @model_validator(mode="after")
    def _whole(self) -> Study:
        _check_whole(self)
        return self

    @property
    def simulated(self) -> bool:
        return self.engine == "simulated"

    @property
    def pinned(self) -> ServerConfig:
        """What every start has in common."""
        return ServerConfig(self.model_path, flags=self.flags)

    @property
    def tp_size(self) -> int:
        return self.pinned.tp_size

    @property
    def model_path(self) -> str:
        name = Path(self.preset).name.removesuffix(".yaml").removesuffix(".yml")
        return self.model or f"simulated/{name}"

    def launch_command(self, gpu_state: Path) -> tuple[str, ...]:
        """What starts a server, before SGLang's flags. `gpu_state`: where the simulated GPUs are kept."""
        if not self.simulated:
            return self.command
        return (*self.public_command, "--speed", f"{self.clock_speed:g}", "--gpu-state", str(gpu_state))

    @property
    def public_command(self) -> tuple[str, ...]:
        """What starts the answer: without the study's own clock and GPUs."""
        engine = (sys.executable, "-m", "launcher.simulated", "--preset", self.preset)
        return engine if self.simulated else self.command

    def server_env(self) -> dict[str, str]:
        """What the server's environment has on top of ours: the choice of GPUs, the study's variables."""
        chosen = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))}
        return {**chosen, **self.env}

    def server_config(self, setting: Setting) -> ServerConfig:
        """The launch of one setting: the searched flags over the pinned ones."""
        return ServerConfig(
            model_path=self.model_path,
            mem_fraction_static=setting.mem_fraction_static,
            kv_cache_dtype=setting.kv_cache_dtype,
            hicache_size_gb=setting.hicache_size_gb,
            flags={name: value for name, value in {**self.flags, **setting.flags}.items() if name != PORT},
        )


def read_study_file(path: Path, overrides: Mapping[str, object] | None = None) -> Study:
    """Read a study file; `overrides` (from the command line) win.

    Raises StudyFileError naming the file, the key, the value and what would be right.
    """
    raw = read_yaml(path, StudyFileError)
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise StudyFileError(f"{path}: must be a mapping of keys such as `model:` and `budget:`")
    told = overrides or {}
    study = override_study(_expanded(raw, str(path)), told, str(path))
    if not _ENGINE_KEYS & {*raw, *told}:
        raise StudyFileError(f"{path}: names no `model:`; for a study without GPUs write `engine: simulated`")
    return study


def override_study(raw: Mapping[str, object], told: Mapping[str, object], source: str) -> Study:
    """What is written, with what the command line tells over it; each is blamed for its own mistakes."""
    build_study(told)
    return build_study({**raw, **told}, source)


def build_study(raw: Mapping[str, object], source: str = "command line") -> Study:
    """Check what a file or the command line says. Raises StudyFileError, one sentence."""
    try:
        study = Study.model_validate(dict(raw))
    except ValidationError as error:
        keys = {"": tuple(Study.model_fields), "slo": tuple(Slo.model_fields)}
        raise StudyFileError(f"{source}: {sentence_of(error, keys)}") from None
    except StudyFileError as error:
        raise StudyFileError(f"{source}: {error}") from None
    return study


def _check_whole(study: Study) -> None:
    study.space.build()
    if study.clock_speed != 1 and not study.simulated:
        raise StudyFileError("clock_speed: only the simulated engine has a clock that can run faster")
    if not study.simulated and not study.model:
        raise StudyFileError("model: is missing; name the model that `command` is to serve")
    if study.start_from is not None:
        _check_start(study.start_from, study.space.build())
    check_sizes(study.flags)
    for name in study.flags:
        _check_dashes("flags", name)
        if name in _SEARCHED or name in study.space.build().further:
            raise StudyFileError(f"flags: {name}: is searched; put its value under `space:` instead")


def _check_start(start: StartFrom, space: Space) -> None:
    """What is not of the space cannot be started; another value in its place would not be what runs today."""
    low, high = space.fraction_bounds
    fraction = start.mem_fraction_static
    if fraction is not None and not low <= fraction <= high:
        raise _not_in_space("mem-fraction-static", fraction, f"from {low:g} to {high:g}")
    told = {"kv-cache-dtype": start.kv_cache_dtype, "hicache-size": start.hicache_size, **(start.model_extra or {})}
    allowed = {"kv-cache-dtype": space.kv_cache_dtypes, "hicache-size": space.hicache_sizes_gb, **space.further}
    for name, value in told.items():
        if name not in allowed:
            raise StudyFileError(f"start_from: {name}: is not searched; pin it under `flags:`, or search it")
        if value is not None and value not in allowed[name]:
            raise _not_in_space(name, value, ", ".join(map(str, allowed[name])))


def _not_in_space(name: str, value: object, allowed: str) -> StudyFileError:
    return StudyFileError(
        f"start_from: {name}: {value}: is outside of what `space:` allows ({allowed}); widen one of them"
    )


def _check_flag_name(name: str) -> None:
    """A misspelt knob would silently be searched as a flag that SGLang does not have."""
    knobs = (*_SEARCHED, "concurrency")
    # argparse takes an abbreviation for the flag itself, so that a beginning of one would be set twice.
    begun = [knob for knob in knobs if knob.startswith(name)]
    near = begun or difflib.get_close_matches(name, knobs, n=1, cutoff=0.8)
    if near and name not in knobs:
        raise StudyFileError(f"space: {name}: unknown key; did you mean {near[0]!r}?")
    _check_dashes("space", name)


def _check_dashes(section: str, name: str) -> None:
    if "_" in name or name.startswith("-"):
        right = name.lstrip("-").replace("_", "-")
        raise StudyFileError(f"{section}: {name}: SGLang's flags are written with dashes inside; use {right}")


def _expanded(value: Any, source: str) -> Any:
    if isinstance(value, str):
        told = _VARIABLE.sub(lambda found: _variable(found[1], source), value)
        return yaml.safe_load(told) if _VARIABLE.fullmatch(value) and _NUMBER.fullmatch(told) else told
    if isinstance(value, dict):
        return {key: _expanded(inner, source) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner, source) for inner in value]
    return value


def _variable(name: str, source: str) -> str:
    if name not in os.environ:
        raise StudyFileError(f"{source}: ${{{name}}} is used, but the environment has no {name}")
    return os.environ[name]
