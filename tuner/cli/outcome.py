"""What comes out: plan (before any start), export and report (of any study, finished or not)."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher import exits

if TYPE_CHECKING:
    from launcher.timeline import MemorySeen

_FORMATS = ("sglang", "command", "compose", "k8s", "systemd")
_study = click.argument("study", required=False)
_output = click.option("--output", metavar="FILE", help="Default: stdout.")


@click.command()
@click.option("--model", required=True, metavar="PATH", help="A model's directory or its config.json.")
@click.option("--gpu-memory-gib", type=click.FloatRange(1, 10_000), help="Of one GPU. Default: this box's smallest.")
@click.option("--tp-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--kv-cache-dtype", "dtypes", multiple=True, default=("bfloat16",), show_default=True)
@click.option("--chunked-prefill-size", type=click.IntRange(1))
@click.option("--started-log", metavar="FILE", help="The log of one start: the table is then exact.")
@click.option("--started-fraction", type=click.FloatRange(0, 1, min_open=True, max_open=True))
def plan(
    model: str,
    gpu_memory_gib: float | None,
    tp_size: int,
    dtypes: tuple[str, ...],
    chunked_prefill_size: int | None,
    started_log: str | None,
    started_fraction: float | None,
) -> None:
    """What each mem-fraction would hold and leave free, computed without touching a GPU."""
    from launcher.dtype import normalize_dtype
    from tuner.cli.tables import console, plain_table
    from tuner.errors import StudyFileError
    from tuner.memory import plan_table

    if started_fraction is not None and started_log is None:
        raise StudyFileError("--started-fraction: is the mem-fraction of a --started-log; name both")
    started = None
    if started_log is not None:
        started = _started(Path(started_log), started_fraction)
    gpu_gib = gpu_memory_gib if gpu_memory_gib is not None else _smallest_gpu_gib()
    if gpu_gib is not None and not math.isfinite(gpu_gib):
        raise StudyFileError(f"--gpu-memory-gib: {gpu_gib}: must be a number")
    if gpu_gib is None and started is None:
        raise StudyFileError("--gpu-memory-gib: is missing, and this box shows no GPU; an H200 has 139.8")
    rows = plan_table(
        Path(model),
        gpu_gib,
        tp_size=tp_size,
        kv_cache_dtypes=[normalize_dtype(name) for name in dtypes],
        chunk_tokens=chunked_prefill_size,
        started=started,
        started_fraction=started_fraction,
    )
    table = plain_table("mem-fraction", "dtype", "KV tokens", "headroom", "survives", "weakest at")
    for row in rows:
        table.add_row(
            f"{row.mem_fraction_static:.3f}",
            row.kv_cache_dtype,
            f"{row.tokens:,.0f} ± {2 * row.tokens_sd:,.0f}",
            f"{row.headroom_gib:.1f} ± {2 * row.headroom_sd_gib:.1f} GiB",
            f"{row.survival:.0%}",
            row.weakest_stage.value.replace("_", " "),
        )
    console().print(table)
    box = "the GPU of the log" if gpu_gib is None else f"GPUs of {gpu_gib:.1f} GiB"
    exits.say(
        f"computed for {box}, not measured; ± is two standard deviations. survives: the chance that a start and its "
        "load leave more headroom than the worst prefill step takes, which without a log of a start is hardly known; "
        "weakest at: where it would most likely die"
    )


@click.command()
@_study
@click.option("--format", "form", type=click.Choice(_FORMATS), default="sglang", show_default=True)
@_output
def export(study: str | None, form: str, output: str | None) -> None:
    """The answer as it stands. Default: the newest study, as SGLang's own YAML."""
    from tuner.export import read_answer, render
    from tuner.journal import find_study

    _check(output)
    _put(render(read_answer(find_study(study)), form), output)


@click.command()
@_study
@click.option("--format", "form", type=click.Choice(("html", "markdown")), default="html", show_default=True)
@click.option("--output", metavar="FILE", help="Default: stdout; where that is a terminal, HTML goes to STUDY.html.")
def report(study: str | None, form: str, output: str | None) -> None:
    """One page: the answer, how it was found, where the time went, every failure. Default: the newest."""
    from tuner.journal import find_study, read_study
    from tuner.report import html_page, markdown_page

    view = read_study(find_study(study))
    if form == "html" and output is None and sys.stdout.isatty():
        output = f"{view.study_id}.html"
    _check(output)
    _put(html_page(view) if form == "html" else markdown_page(view), output)


def _check(output: str | None) -> None:
    from tuner.export.atomic import check_writable

    if output is not None:
        check_writable(Path(output), "--output")


def _put(text: str, output: str | None) -> None:
    from tuner.export.atomic import write_whole

    if output is None:
        print(text, end="")
        return
    write_whole(Path(output), text)
    exits.say(f"written to {output}")


def _started(path: Path, fraction: float | None) -> MemorySeen:
    from launcher.logs import read_timeline
    from tuner.errors import StudyFileError

    if fraction is None:
        raise StudyFileError("--started-fraction: must say which mem-fraction-static --started-log is of")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StudyFileError(f"--started-log: {path}: cannot be read ({error.strerror})") from None
    seen = read_timeline(text).memory
    if seen.capacity_tokens is None:
        raise StudyFileError(f"--started-log: {path}: holds no start of SGLang that came to its KV pool")
    return seen


def _smallest_gpu_gib() -> float | None:
    from launcher.nvml import open_gpus

    gpus = open_gpus(None)
    try:
        sizes = [gpu.memory_total_bytes for gpu in gpus.read(memory_only=True) if gpu.memory_total_bytes]
    finally:
        gpus.close()
    return min(sizes) / 2**30 if sizes else None
