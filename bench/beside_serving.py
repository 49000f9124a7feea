"""Our rate beside `sglang.bench_serving`'s on a real SGLang server: same concurrency, same requests, in one run.

    sh scripts/with-cpu-sglang .venv/bin/python -m bench.beside_serving

They take turns, several times, so that a machine that changes its speed meanwhile shows in the spread. The server's
own counters, read alike during both, are the witness: tokens per second over the middle of each run. Bench_serving's
`output_throughput` also counts its ramp and its tail, which the witness leaves out.

Two things make another load of what looks like the same, and a last part shows what each is worth:
- Bench_serving asks for greedy answers (temperature 0). SGLang draws from the distribution unasked, and so do our
  requests that do not say; on a CPU that takes its time. Here ours ask for greedy answers too.
- With one length for all, bench_serving's clients start together and so end together, for ever: their prompts share
  prefill passes, and a pass costs about as much for three short prompts as for one. Our clients start at ages spread
  evenly, as in the middle of a long run, and a prompt has a pass to itself. Here the lengths vary, as those of real
  requests do, and ours are those that bench_serving played.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from bench.bench_serving import OFFLINE, PYTHON_VARIABLE, ServingJob, make_tokenizer, run_bench_serving, sglang_python
from bench.figures import figure
from bench.load import wait_ready
from launcher.clock import WallClock
from launcher.observe.read import ServerReader
from launcher.observe.sample import ServerSample
from launcher.ports import free_port
from tuner.measure.live import ServerDied, measure_level
from tuner.testbed import LevelLimits
from tuner.workload import Workload, load_workload

MODEL_VARIABLE = "KVTUNE_TINY_LLAMA"
CONCURRENCY = 8
INPUT_TOKENS, OUTPUT_TOKENS = 64, 128
SHORTEST_SHARE = 0.5
REQUESTS = 400
LEVEL_S = 30.0
READ_EVERY_S = LEVEL_S / 120
"""As often as our own level reads the server: reading costs it time, so that both must pay alike."""
REPETITIONS = 4
GREEDY = {"temperature": 0.0}
ENVIRONMENT = {**OFFLINE, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--enable-metrics",
    "--mem-fraction-static=0.05",
    "--max-total-tokens=4096",
)


Lengths = list[dict[str, int]]
"""Of the requests of a run, as records of a workload file."""


@dataclass(frozen=True, slots=True)
class Server:
    """A real server on the CPU."""

    python: str
    url: str
    log: Path

    def log_size(self) -> int:
        return self.log.stat().st_size

    def prompts_per_pass(self, since: int) -> float:
        """Prompts that share a prefill pass, by the log from that size on."""
        counts = re.findall(rb"Prefill batch.*?#new-seq: (\d+)", self.log.read_bytes()[since:])
        return float(np.mean([int(count) for count in counts])) if counts else 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of either: its rate, and the server's own over its middle, in tokens per second."""

    who: str
    rate: float
    witness: float
    client_cores: float
    """What the client itself took of the machine that the server also runs on."""
    prompts_per_pass: float

    def show(self) -> None:
        print(
            f"{self.who:14}{self.rate:7.1f} tokens/s; by the server's counters {self.witness:7.1f},"
            f" {self.prompts_per_pass:.2f} prompts a prefill pass; the client took {self.client_cores:.2f} cores",
            flush=True,
        )


@dataclass(frozen=True, slots=True)
class Look:
    """The server's counters and the client's CPU seconds at one moment."""

    taken_s: float
    tokens: float
    client_cpu_s: float


@contextlib.contextmanager
def real_server(python: str, model: Path) -> Iterator[Server]:
    """A real server while it lives. It is given a tokenizer, which bench_serving needs."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        own, path = Path(directory) / "model", Path(directory) / "log"
        shutil.copytree(model, own)
        make_tokenizer(python, own)
        command = [python, "-m", "sglang.launch_server", f"--model-path={own}", f"--port={url.rpartition(':')[2]}"]
        environment = {**os.environ, **ENVIRONMENT}
        with path.open("w") as log:
            process = subprocess.Popen(
                [*command, *FLAGS], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            wait_ready(url, process)
            yield Server(python, url, path)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def ours(server: Server, lengths: Lengths, seed: int, sampling: Mapping[str, float] = GREEDY) -> Turn:
    """One level of ours with the lengths that theirs played."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lengths.jsonl"
        path.write_text("".join(json.dumps({**sampling, **record}) + "\n" for record in lengths))
        return level(server, load_workload(path, seed=seed), seed)


def level(server: Server, workload: Workload, seed: int) -> Turn:
    """One level of ours."""
    clock, limits, since = WallClock(), LevelLimits(LEVEL_S, target_share=0.0), server.log_size()
    seen: list[Look] = []
    with ServerReader(server.url) as reader:
        measuring = measure_level(
            server.url,
            workload,
            CONCURRENCY,
            limits,
            clock,
            gpus=None,
            reader=reader,
            is_dead=lambda: None,
            seed=seed,
            on_moment=lambda moment: seen.append(look(moment.server, time.process_time())) if moment.server else None,
        )
        result = asyncio.run(measuring)
    if isinstance(result, ServerDied):
        raise SystemExit(result.failure.sentence)
    return Turn("ours", result.completion_rate.value, *middle(seen), server.prompts_per_pass(since))


def theirs(server: Server, job: ServingJob) -> tuple[Turn, Lengths]:
    """One run of bench_serving, and the lengths that it played."""
    since = server.log_size()
    with witness(server.url) as seen:
        found = run_bench_serving(server.python, job)
    rate = float(str(found["output_throughput"]))
    lengths = zip(json.loads(str(found["input_lens"])), json.loads(str(found["output_lens"])), strict=True)
    turn = Turn("bench_serving", rate, *middle(seen), server.prompts_per_pass(since))
    return turn, [{"prompt_tokens": prompt, "output_tokens": answer} for prompt, answer in lengths]


@contextlib.contextmanager
def witness(url: str) -> Iterator[list[Look]]:
    """Reads the server meanwhile, and what bench_serving's process takes."""
    seen: list[Look] = []
    over = threading.Event()

    def watch() -> None:
        with ServerReader(url) as reader:
            while not over.wait(READ_EVERY_S):
                seen.append(look(reader.read(), bench_serving_cpu_s()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def look(sample: ServerSample, client_cpu_s: float) -> Look:
    """An answer's first token comes from its prefill, which the decode counter leaves out."""
    tokens = (sample.totals.decoded_tokens or 0.0) + (sample.totals.finished_requests or 0.0)
    return Look(sample.taken_s, tokens, client_cpu_s)


def bench_serving_cpu_s() -> float:
    """CPU seconds of our child that is bench_serving; 0 before and after it."""
    spent_s = 0.0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "sglang.bench_serving" in child.cmdline():
                spent_s += sum(child.cpu_times()[:2])
    return spent_s


def middle(seen: Sequence[Look]) -> tuple[float, float]:
    """Tokens per second by the counters, and the client's cores, over the middle four fifths of their growth."""
    busy = [each for each in seen if seen[0].tokens < each.tokens < seen[-1].tokens]
    cut = len(busy) // 10
    first, last = busy[cut], busy[-1 - cut]
    spent_s = last.taken_s - first.taken_s
    return (last.tokens - first.tokens) / spent_s, (last.client_cpu_s - first.client_cpu_s) / spent_s


def take_turns(server: Server, job: ServingJob, repetitions: int) -> tuple[list[Turn], list[Turn], Lengths]:
    """Theirs and ours by turns, and the lengths that both played."""
    us: list[Turn] = []
    them: list[Turn] = []
    lengths: Lengths = []
    for seed in range(repetitions):
        turn, lengths = theirs(server, job)
        them.append(turn)
        turn.show()
        us.append(ours(server, lengths, seed))
        us[-1].show()
    return us, them, lengths


def median(turns: Sequence[Turn], name: str) -> float:
    return float(np.median([getattr(turn, name) for turn in turns]))


def main() -> int:
    python, model = sglang_python(), os.environ.get(MODEL_VARIABLE)
    if python is None or not model:
        print(f"left out: {PYTHON_VARIABLE} and {MODEL_VARIABLE} name no SGLang (see scripts/with-cpu-sglang)")
        return 0
    with real_server(python, Path(model)) as server:
        alike = ServingJob(server.url, "default", REQUESTS, CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, stream=True)
        varied = replace(alike, shortest_share=SHORTEST_SHARE)
        theirs(server, varied)  # what the first requests of a server pay is nobody's
        print(f"greedy answers of {round(OUTPUT_TOKENS * SHORTEST_SHARE)} to {OUTPUT_TOKENS} tokens:", flush=True)
        us, them, lengths = take_turns(server, varied, REPETITIONS)
        print("the same, drawn from the distribution:", flush=True)
        ours(server, lengths, REPETITIONS, sampling={}).show()
        print(f"greedy answers of {OUTPUT_TOKENS} tokens all:", flush=True)
        take_turns(server, alike, 1)
    for name, turns in (("bench_serving", them), ("ours", us)):
        print(
            f"median {name:14}{median(turns, 'rate'):7.1f} tokens/s; by counters {median(turns, 'witness'):7.1f};"
            f" its client took {median(turns, 'client_cores'):.2f} cores"
        )
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    figure("rate_to_bench_serving_share", median(us, "rate") / median(them, "rate"), "share")
    figure("rate_to_counters_share", median(us, "rate") / median(us, "witness"), "share")
    figure("counters_to_bench_serving_counters_share", median(us, "witness") / median(them, "witness"), "share")
    return 0


if __name__ == "__main__":
    sys.exit(main())
