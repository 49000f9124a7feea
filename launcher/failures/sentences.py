"""One sentence for a person: what, where, and the figures that were found."""

from __future__ import annotations

from dataclasses import replace

from launcher.failure import Direction, Failure, FailureNumbers, Stage

_WHERE = {
    Stage.LAUNCH: "before the weights",
    Stage.WEIGHTS: "while loading the weights",
    Stage.KV_POOL: "while allocating the KV pool",
    Stage.GRAPH_CAPTURE: "while preparing or capturing CUDA graphs",
    Stage.HOST_POOL: "while building the host pool",
    Stage.WARM_UP: "in the warm-up request",
    Stage.FIRST_PREFILL: "in the first requests",
    Stage.UNDER_LOAD: "under load",
}


def with_details(failure: Failure) -> Failure:
    """The failure with its rank, the stage of an out-of-memory, and the figures put into its sentence."""
    sentence = failure.sentence
    if failure.is_gpu_oom and failure.mem_fraction_direction is not Direction.UP:
        sentence = f"{sentence} {_WHERE.get(failure.stage, '')}".rstrip()
    if failure.rank is not None:
        sentence = f"{failure.rank}: {sentence}"
    figures = figures_of(failure.numbers)
    return replace(failure, sentence=f"{sentence} ({figures})" if figures else sentence)


def figures_of(numbers: FailureNumbers) -> str:
    """ "wanted 1.69 GiB, 1.06 GiB free", or what else there is; empty when there is nothing."""
    found = (
        ("wanted", _size(numbers.tried_gib)),
        ("free", _size(numbers.gpu_free_gib)),
        ("needs at least", None if numbers.minimum_mem_fraction is None else f"{numbers.minimum_mem_fraction:.4g}"),
        ("requested", _decimal(numbers.host_requested_gb)),
        ("available", _decimal(numbers.host_available_gb)),
    )
    return ", ".join(f"{word} {value}" for word, value in found if value is not None)


def _size(gib: float | None) -> str | None:
    if gib is None:
        return None
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


def _decimal(gb: float | None) -> str | None:
    return None if gb is None else f"{gb:.0f} GB"
