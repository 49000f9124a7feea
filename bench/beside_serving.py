"""Our rate beside `sglang.bench_serving`'s on a real SGLang server, same concurrency and lengths, in one run.

    sh scripts/with-cpu-sglang .venv/bin/python -m bench.beside_serving

Ours, theirs, ours, theirs, ours: a machine that changes its speed meanwhile shows in the spread. Theirs is its
`output_throughput`, which counts ramp and tail; with constant lengths and whole waves there is next to none of either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.bench_serving import OFFLINE, PYTHON_VARIABLE, ServingJob, make_tokenizer, run_bench_serving, sglang_python
from bench.figures import figure
from bench.load import wait_ready
from launcher.clock import WallClock
from launcher.observe.read import ServerReader
from launcher.ports import free_port
from tuner.measure.live import ServerDied, measure_level
from tuner.testbed import LevelLimits
from tuner.trial import LevelResult
from tuner.workload import load_workload

MODEL_VARIABLE = "KVTUNE_TINY_LLAMA"
CONCURRENCY = 8
INPUT_TOKENS, OUTPUT_TOKENS = 64, 128
WAVES = 40
LEVEL_S = 40.0
ENVIRONMENT = {**OFFLINE, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--enable-metrics",
    "--mem-fraction-static=0.05",
    "--max-total-tokens=4096",
)


@contextlib.contextmanager
def real_server(python: str, model: Path) -> Iterator[str]:
    """The URL of a real server on the CPU, while it lives. It is given a tokenizer, which bench_serving needs."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory) / "model"
        shutil.copytree(model, own)
        make_tokenizer(python, own)
        command = [python, "-m", "sglang.launch_server", f"--model-path={own}", f"--port={url.rpartition(':')[2]}"]
        environment = {**os.environ, **ENVIRONMENT}
        with (Path(directory) / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, *FLAGS], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            wait_ready(url, process)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def ours(url: str, seed: int) -> LevelResult:
    """One level of ours."""
    workload = load_workload(f"random:in={INPUT_TOKENS},out={OUTPUT_TOKENS}", seed=seed)
    clock, limits = WallClock(), LevelLimits(LEVEL_S, target_share=0.02)
    with ServerReader(url) as reader:
        level = measure_level(
            url, workload, CONCURRENCY, limits, clock, gpus=None, reader=reader, is_dead=lambda: None, seed=seed
        )
        result = asyncio.run(level)
    if isinstance(result, ServerDied):
        raise SystemExit(result.failure.sentence)
    return result


def theirs(python: str, url: str) -> float:
    """One run of bench_serving, in completion tokens per second."""
    requests = WAVES * CONCURRENCY
    job = ServingJob(url, "default", requests, CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, stream=True)
    return float(str(run_bench_serving(python, job)["output_throughput"]))


def main() -> int:
    python, model = sglang_python(), os.environ.get(MODEL_VARIABLE)
    if python is None or not model:
        print(f"left out: {PYTHON_VARIABLE} and {MODEL_VARIABLE} name no SGLang (see scripts/with-cpu-sglang)")
        return 0
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    with real_server(python, Path(model)) as url:
        for turn in range(5):
            if turn % 2:
                rates["theirs"].append(theirs(python, url))
                print(f"bench_serving {rates['theirs'][-1]:7.1f} tokens/s", flush=True)
                continue
            result = ours(url, turn)
            rate = result.completion_rate
            rates["ours"].append(rate.value)
            print(f"ours          {rate.value:7.1f} tokens/s, {rate.low:.1f} to {rate.high:.1f}", flush=True)
    figure("rate_to_bench_serving_share", float(np.mean(rates["ours"]) / np.mean(rates["theirs"])), "share")
    return 0


if __name__ == "__main__":
    sys.exit(main())
