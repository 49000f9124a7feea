"""`python -m bench.scrape [--url URL]`: what one scrape costs us, and what our polling costs the server.

1. Scrape + parse of the 70 kB dump of an H200 server, ours against prometheus_client, interleaved in one run over the
   same connection: medians.
2. Requests/s of a server with and without our polling once a second, in alternating windows: the simulated engine's
   server process (so these rates are simulated; the share is of real HTTP work), or the server at --url.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.figures import figure
from launcher.errors import ObservationError
from launcher.observe.http import HttpReader
from launcher.observe.prometheus import Parser
from launcher.observe.read import ServerReader
from launcher.ports import free_port

SHARED = Path(os.environ.get("KVTUNE_SHARED", Path(__file__).resolve().parents[2] / "shared"))
DUMP = SHARED / "captures" / "h200-sglang-0.5.17" / "dshic-64.metrics.txt"
PRESET = "qwen2.5-32b-1x-h200"
SPEED = 500.0
"""Fast enough that the server's HTTP work, and not the simulated GPU, bounds the rate."""
POLL_EVERY_S = 1.0
CLIENTS = 8
_START_S = 60.0
_SPAWN = multiprocessing.get_context("spawn")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scrape", description=__doc__)
    parser.add_argument("--url", help="a running server to load instead of the simulated one")
    parser.add_argument("--rounds", type=int, default=60, help="interleaved scrapes of each kind")
    parser.add_argument("--windows", type=int, default=40, help="pairs of windows, with and without polling")
    parser.add_argument("--window-s", type=float, default=1.5)
    options = parser.parse_args(arguments)
    if not DUMP.is_file():
        print(f"scrape: {DUMP} is missing (KVTUNE_SHARED says where the captures are)", file=sys.stderr)
        return 2
    ours_s, theirs_s, parse_s = scrape_both(DUMP.read_text(encoding="utf-8"), options.rounds)
    print(f"scrape + parse, median of {options.rounds}: ours {ours_s * 1e3:.2f} ms ", end="")
    print(f"(parse alone {parse_s * 1e3:.2f} ms), prometheus_client {theirs_s * 1e3:.2f} ms")
    with _server(options.url) as url:
        pairs = asyncio.run(rates(url, options.windows, options.window_s))
    bare, polled = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    print(f"requests/s{'' if options.url else ' (simulated engine)'}, medians of {options.windows} windows of ", end="")
    print(f"{options.window_s:g} s: {bare:.1f} alone, {polled:.1f} polled every {POLL_EVERY_S:g} s")
    figure("scrape_speedup_x", theirs_s / ours_s, "x")
    figure("scrape_parse_ms", ours_s * 1e3, "ms")
    figure("monitored_rate_share", statistics.median(with_us / alone for alone, with_us in pairs), "share")
    return 0


def scrape_both(dump: str, rounds: int) -> tuple[float, float, float]:
    """Median seconds of: our scrape and parse, the library's, our parse alone. The server is a process of its own."""
    with _dump_server(dump) as url:
        http, parser = HttpReader(url, None, 5.0), Parser()
        parser.parse(http.get("/metrics"))
        ours, theirs, parse = [], [], []
        for _ in range(rounds):
            ours.append(_timed(lambda: parser.parse(http.get("/metrics"))))
            theirs.append(_timed(lambda: list(text_string_to_metric_families(http.get("/metrics")))))
            parse.append(_timed(lambda: parser.parse(dump)))
        http.close()
    return statistics.median(ours), statistics.median(theirs), statistics.median(parse)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


@contextmanager
def _dump_server(dump: str) -> Iterator[str]:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve_dump, args=(dump, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        process.join(timeout=10)


def _serve_dump(dump: str, pipe: Connection) -> None:
    """Answer every request of one connection with the dump, in one write: the server's own work is not measured."""
    body = dump.encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            while connection.recv(65536):
                connection.sendall(answer)


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    """The given server, or a simulated one for as long as the block runs."""
    if url is not None:
        yield url
        return
    port = free_port(())
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "launcher.simulated", "--preset", PRESET, "--speed", str(SPEED)]
        command += ["--gpu-state", state, "--model-path", PRESET, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen([*command, "--enable-metrics"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_read(f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def _wait_until_read(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            with ServerReader(url, timeout_s=2.0) as reader:
                reader.read()
                return
        except ObservationError:
            time.sleep(0.2)
    raise SystemExit(f"scrape: the server at {url} was not up within {_START_S:g} s")


async def rates(url: str, windows: int, window_s: float) -> list[tuple[float, float]]:
    """Requests/s without and with polling, of pairs of neighbouring windows; which comes first alternates."""
    pairs: list[tuple[float, float]] = []
    async with aiohttp.ClientSession() as session:
        await _window(session, url, window_s)
        with _poller(url) as switch:
            for number in range(windows):
                found: dict[bool, float] = {}
                for polled in (False, True) if number % 2 else (True, False):
                    switch(polled)
                    found[polled] = await _window(session, url, window_s)
                pairs.append((found[False], found[True]))
    return pairs


@contextmanager
def _poller(url: str) -> Iterator[Callable[[bool], None]]:
    """Our monitor's reading, from a process of its own as kvtop is; it is there, idle, when polling is off."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_poll, args=(url, theirs), daemon=True)
    process.start()
    theirs.close()

    def switch(on: bool) -> None:
        ours.send(on)
        ours.recv()

    try:
        yield switch
    finally:
        ours.close()
        process.join(timeout=10)


def _poll(url: str, pipe: Connection) -> None:
    """Read once a second while switched on, until the pipe is closed."""
    on = False
    with ServerReader(url, timeout_s=2.0) as reader, suppress(EOFError):
        reader.read()
        while True:
            if pipe.poll(POLL_EVERY_S if on else None):
                on = pipe.recv()
                pipe.send(on)
            if on:
                reader.read()


async def _window(session: aiohttp.ClientSession, url: str, window_s: float) -> float:
    """Finished requests per second of a closed loop of short requests."""
    until = time.monotonic() + window_s
    began = time.monotonic()
    counts = await asyncio.gather(*(_client(session, url, until) for _ in range(CLIENTS)))
    return sum(counts) / (time.monotonic() - began)


async def _client(session: aiohttp.ClientSession, url: str, until: float) -> int:
    body = {"text": "How full is the cache?", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    finished = 0
    while time.monotonic() < until:
        async with session.post(f"{url}/generate", json=body) as response:
            await response.read()
            response.raise_for_status()
        finished += 1
    return finished


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
