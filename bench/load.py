"""How fast the load generator can go, beside httpx, a bare aiohttp loop and SGLang's bench_serving.

All of them play the same small requests against one simulated server, whose engine runs a thousand times too fast
to matter: what is left is HTTP. A round gives each its turn, and the best of the rounds is its ceiling (on a busy
machine the others only show how busy it was). The server is one Python process too, and is a part of every ceiling.
Where httpx limits: for every request its pool looks at every connection and polls each idle socket (httpcore's
connection_pool.py), so that its ceiling falls as clients are added.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import httpx

from bench.bench_serving import PYTHON_VARIABLE, ServingJob, run_bench_serving, sglang_python
from bench.figures import figure
from launcher.clock import WallClock
from launcher.ports import free_port
from tuner.load import Call, Failed, LoadClient, Progress, call_for
from tuner.workload import load_workload

CLIENTS = 64
ROUND_S = 3.0
ROUNDS = 3
INPUT_TOKENS, OUTPUT_TOKENS = 32, 16
STREAMED_TOKENS = 64
SERVING_REQUESTS = 1_024
START_LIMIT_S = 300.0

Found = dict[str, tuple[float, float]]
"""(requests/s, tokens/s) by name."""
Send = Callable[[Call], Awaitable[int]]
"""Plays one call and returns its tokens."""


@contextlib.contextmanager
def simulated_server() -> Iterator[str]:
    """A simulated server's URL, while it lives."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        flags = ["--preset", "dsv2-lite-1x-h200", "--speed", "1000", "--gpu-state", directory, "--model-path", "m"]
        command = [sys.executable, "-m", "launcher.simulated", *flags, "--port", url.rpartition(":")[2]]
        with (Path(directory) / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_ready(url, process)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers /health; leaves when it dies or does not in time."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health"):
            return
        time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def calls(output_tokens: int, stream: bool) -> list[Call]:
    """The calls that everyone plays, made beforehand as bench_serving makes its own."""
    workload = load_workload(f"random:in={INPUT_TOKENS},out={output_tokens}", seed=1)
    return [call_for(request, stream=stream) for request in workload.sample(SERVING_REQUESTS)]


async def closed_loop(send: Send, deck: list[Call], seconds: float) -> tuple[float, float]:
    """(requests/s, tokens/s) of CLIENTS clients."""
    end_s = time.monotonic() + seconds
    sent, tokens = 0, 0

    async def client(first: int) -> None:
        nonlocal sent, tokens
        at = first
        while time.monotonic() < end_s:
            got = await send(deck[at % len(deck)])
            sent, tokens, at = sent + 1, tokens + got, at + CLIENTS

    began_s = time.monotonic()
    await asyncio.gather(*(client(first) for first in range(CLIENTS)))
    took_s = time.monotonic() - began_s
    return sent / took_s, tokens / took_s


async def ours(stack: AsyncExitStack, url: str) -> Send:
    clock = WallClock()
    client = await stack.enter_async_context(LoadClient(url, clock))

    async def send(call: Call) -> int:
        answer = await client.play(call, Progress(clock.now_s()))
        if isinstance(answer, Failed):
            raise SystemExit(f"our client failed: {answer.kind}")
        return answer.completion_tokens

    return send


async def bare_aiohttp(stack: AsyncExitStack, url: str) -> Send:
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

    async def send(call: Call) -> int:
        async with session.post(url + call.route, json=call.body) as response:
            return _last_tokens(await response.read())

    return send


async def bare_httpx(stack: AsyncExitStack, url: str) -> Send:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=None))

    async def send(call: Call) -> int:
        async with client.stream("POST", url + call.route, json=call.body) as response:
            return _last_tokens(await response.aread())

    return send


def _last_tokens(content: bytes) -> int:
    """The token count of a whole answer, or of a stream's last event."""
    events = [line.removeprefix(b"data: ") for line in content.split(b"\n") if line and b"[DONE]" not in line]
    return int(json.loads(events[-1])["meta_info"]["completion_tokens"])


RIVALS = {"ours": ours, "aiohttp": bare_aiohttp, "httpx": bare_httpx}


async def one_round(url: str, deck: list[Call]) -> Found:
    """Every rival's turn, with connections of its own."""
    found = {}
    for name, rival in RIVALS.items():
        async with AsyncExitStack() as stack:
            found[name] = await closed_loop(await rival(stack, url), deck, ROUND_S)
    return found


def bench_serving(python: str, url: str, *, stream: bool) -> tuple[float, float]:
    """SGLang's own turn."""
    tokens = STREAMED_TOKENS if stream else OUTPUT_TOKENS
    job = ServingJob(url, "m", SERVING_REQUESTS, CLIENTS, INPUT_TOKENS, tokens, stream=stream)
    figures = run_bench_serving(python, job)
    return float(str(figures["request_throughput"])), float(str(figures["output_throughput"]))


def ceilings(url: str, *, stream: bool) -> Found:
    """The best round of each."""
    deck = calls(STREAMED_TOKENS if stream else OUTPUT_TOKENS, stream)
    python = sglang_python()
    best: Found = {}
    for _ in range(ROUNDS):
        found = asyncio.run(one_round(url, deck))
        if python is not None:
            found["bench_serving"] = bench_serving(python, url, stream=stream)
        best = {name: max(best.get(name, rate), rate) for name, rate in found.items()}
    return best


def show(title: str, found: Found) -> None:
    for name, (requests_per_s, tokens_per_s) in found.items():
        print(f"{title:8} {name:13} {requests_per_s:7.0f} requests/s {tokens_per_s:9.0f} tokens/s")


def main() -> int:
    with simulated_server() as url:
        whole, streamed = ceilings(url, stream=False), ceilings(url, stream=True)
    show("whole", whole)
    show("streamed", streamed)
    rate = whole["ours"][0]
    figure("load_ceiling_requests_per_s", rate, "requests/s")
    figure("ceiling_to_aiohttp_share", rate / whole["aiohttp"][0], "share")
    figure("httpx_to_aiohttp_share", whole["httpx"][0] / whole["aiohttp"][0], "share")
    if "bench_serving" in whole:
        figure("ceiling_to_bench_serving_share", rate / whole["bench_serving"][0], "share")
    else:
        print(f"bench_serving was left out: {PYTHON_VARIABLE} names no interpreter that has SGLang")
    return 0


if __name__ == "__main__":
    sys.exit(main())
