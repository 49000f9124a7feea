"""A recording as a case: `table.jsonl` with the rows, and beside it `table.yaml`, which says what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.contest.cases import Case
from bench.contest.recorded.memory import RecordedMemory, memory_of
from bench.contest.recorded.rates import RecordedRates, rates_of
from bench.contest.recorded.rows import RecordedStart, read_starts
from launcher.errors import UsageError
from launcher.yaml_file import yaml_fault
from tuner.memory import MemoryPrior, read_geometry
from tuner.space import Space
from tuner.study_file import SpaceSpec

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class RecordedCase(Case):
    """A case on recorded starts and levels. They are the referee's: no method reads them."""

    starts: tuple[RecordedStart, ...]
    memory: RecordedMemory
    rates: RecordedRates

    def says_what_it_is(self) -> str:
        """For a person: what is behind every number of this case, and where memory ends."""
        return (
            f"Recorded, interpolated between {self.rates.measured_levels} measured points of "
            f"{len(self.memory.lived)} starts at mem-fraction {_listed(self.memory.lived)}.\n"
            f"A start needs {self.memory.needed_gib:.2f} GiB of headroom; recorded deaths: "
            f"{_listed(self.memory.died)}. SGLang's default: {self.prior.default_fraction():g}."
        )


class Description(BaseModel):
    """What a table was recorded on. Paths are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    """Model and box."""
    model: str
    """The model's config.json, or its directory."""
    gpu_memory_gib: float = Field(gt=0, alias="gpu-memory-gib")
    tp_size: int = Field(default=1, ge=1, alias="tp-size")
    space: SpaceSpec
    workload: str
    further_rows: tuple[str, ...] = Field(default=(), alias="further-rows")
    """Further files of rows, such as the starts that died on other days."""


def recorded_case(table: str | Path) -> RecordedCase:
    """The case of a table. Raises UsageError or StudyFileError, one sentence each, for what cannot be replayed."""
    path = Path(table)
    described = _read_description(path.with_suffix(".yaml"))
    starts = read_starts([path, *(path.parent / further for further in described.further_rows)])
    try:
        memory = memory_of(starts)
        rates = rates_of(memory)
    except UsageError as error:
        raise UsageError(f"recording {path}: {error}") from error
    geometry = read_geometry(path.parent / described.model)
    return RecordedCase(
        name=f"{described.name} / {described.workload.partition(':')[0]} / bf16",
        workload=described.workload,
        space=_replayable(described.space.build(), path),
        reused_prefix_share=0.0,
        prior=MemoryPrior(geometry, described.gpu_memory_gib, described.tp_size),
        starts=starts,
        memory=memory,
        rates=rates,
    )


def _listed(starts: Sequence[RecordedStart]) -> str:
    return ", ".join(f"{fraction:g}" for fraction in sorted({start.mem_fraction_static for start in starts}))


def _read_description(path: Path) -> Description:
    try:
        return Description.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"recording {path}: cannot be read ({error}); it says what the rows beside it are") from error
    except yaml.YAMLError as error:
        raise UsageError(f"recording {path}: is not YAML; {yaml_fault(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"recording {path}: {where}: {first['msg']}") from error


def _replayable(space: Space, path: Path) -> Space:
    """Only the fraction and the concurrency can be interpolated."""
    if space.kv_cache_dtypes != ("bfloat16",) or space.hicache_sizes_gb != (0,) or space.further:
        raise UsageError(f"recording {path}: space: only mem-fraction-static and concurrency can be searched in it")
    return space
