"""The simulated server as a process: it starts, serves, drains and dies as SGLang does, and holds GPU memory."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from launcher.clock import WallClock
from launcher.config import ServerConfig
from launcher.simulated.box import VirtualBox
from launcher.simulated.events import Finished, FirstToken, SimRequest
from launcher.simulated.gpus import SimulatedGpus, prepare_gpu_state
from launcher.simulated.presets import load_preset
from tuner.load import LoadClient
from tuner.measure.cap import admission_cap


@pytest.fixture(scope="module")
def server(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with servers.serving(tmp_path_factory.mktemp("server"), "--enable-metrics", speed=100) as served:
        yield served


def test_it_says_that_it_is_simulated_wherever_it_is_asked(server: Any) -> None:
    assert server.get("/server_info").json()["simulated"] is True
    assert server.get("/model_info").json()["simulated"] is True
    assert server.get("/v1/loads").json()["simulated"] is True
    assert "sglang:simulated{" in server.get("/metrics").text
    assert "Simulated by kvtune" in server.log
    assert all("(simulated)" in sample.name for sample in SimulatedGpus(server.gpu_state).read())


def test_health_and_models(server: Any) -> None:
    assert server.get("/health").status_code == 200
    assert server.get("/health_generate").status_code == 200
    assert server.get("/v1/models").json()["data"][0]["id"] == "models/test"


def test_generate(server: Any) -> None:
    meta = server.generate(prompt=100, output=7, first_id=5000).json()["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (100, 7)
    assert meta["finish_reason"] == {"type": "length", "length": 7}
    again = server.generate(prompt=100, output=7, first_id=5000).json()["meta_info"]
    assert again["cached_tokens"] == 99
    assert again["cached_tokens_details"] == {"device": 99, "host": 0}


def test_prefixes_are_found_in_blocks(server: Any) -> None:
    server.generate(prompt=300, output=1, first_id=70_000)
    longer = [*range(70_000, 70_200), *range(1, 101)]
    body = {"input_ids": longer, "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    assert server.post("/generate", body).json()["meta_info"]["cached_tokens"] == 192


def test_the_next_turn_finds_the_answer_in_the_cache(server: Any) -> None:
    """As in virtual time: the whole turn before is found, its answer included."""
    asked = list(range(90_000, 90_150))
    sampling = {"max_new_tokens": 77, "ignore_eos": True}
    answer = server.post("/generate", {"input_ids": asked, "sampling_params": sampling}).json()
    longer = {"input_ids": [*asked, *answer["output_ids"], *range(50)], "sampling_params": sampling}
    assert server.post("/generate", longer).json()["meta_info"]["cached_tokens"] == 150 + 77


def test_generate_streams_cumulative_chunks(server: Any) -> None:
    body = {"text": "word " * 400, "stream": True, "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
    with httpx.stream("POST", server.url + "/generate", json=body, timeout=20) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    counts = [json.loads(line)["meta_info"]["completion_tokens"] for line in lines[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 300
    assert len(counts) > 1


def test_openai_endpoints(server: Any) -> None:
    plain = server.post("/v1/completions", {"prompt": "hello " * 30, "max_tokens": 5, "ignore_eos": True}).json()
    assert (plain["object"], plain["usage"]["completion_tokens"]) == ("text_completion", 5)
    messages = [{"role": "user", "content": "hello"}]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 6, "ignore_eos": True}).json()
    assert (chat["choices"][0]["message"]["role"], chat["choices"][0]["finish_reason"]) == ("assistant", "length")
    body = {"messages": messages, "max_tokens": 50, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=20) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line and "[DONE]" not in line]
    assert chunks[-1]["usage"]["total_tokens"] == chunks[-1]["usage"]["prompt_tokens"] + 50


def test_the_model_ends_by_itself_without_ignore_eos(server: Any) -> None:
    body = {"text": "hi", "rid": "one", "sampling_params": {"max_new_tokens": 20_000}}
    meta = server.post("/generate", body).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "stop"
    assert meta["completion_tokens"] < 20_000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input_ids"),
        ({"input_ids": [1] * 40_000}, "longer than the model's context length"),
        ({"input_ids": ["a"]}, "integers"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "at least 1"),
    ],
)
def test_bad_requests(server: Any, body: object, message: str) -> None:
    response = server.post("/generate", body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_metrics_count_what_finished(server: Any) -> None:
    def total() -> float:
        lines = server.get("/metrics").text.splitlines()
        rows = [line for line in lines if line.startswith("sglang:generation_tokens_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in rows)

    before = total()
    server.generate(output=9, first_id=90_000)
    assert total() == before + 9


def test_admin_endpoints(server: Any) -> None:
    changed = server.post("/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 5}})
    assert changed.json()[0]["updated"] is True
    assert server.get("/server_info").json()["internal_states"][0]["pp_max_micro_batch_size"] == 5
    assert server.post("/flush_cache", None).status_code == 200
    assert server.generate(prompt=100, output=2, first_id=5000).json()["meta_info"]["cached_tokens"] == 0


async def test_the_admission_cap_is_held_live_and_given_back(server: Any) -> None:
    def cap() -> int:
        return int(server.get("/server_info").json()["internal_states"][0]["pp_max_micro_batch_size"])

    before = await asyncio.to_thread(cap)
    async with LoadClient(server.url, WallClock()) as client:
        async with admission_cap(client, 4) as held:
            assert held == 4 == await asyncio.to_thread(cap)
        async with admission_cap(client, before + 1) as held:
            assert held is None
    assert await asyncio.to_thread(cap) == before


def test_a_request_can_be_aborted(servers: Any, server: Any) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(server.generate(output=30_000, first_id=7, rid="long"))

    asking = threading.Thread(target=ask)
    asking.start()
    servers.until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
    assert server.post("/flush_cache", None).status_code == 400
    server.post("/abort_request", {"rid": "long"})
    asking.join()
    assert answers[0].status_code == 499
    assert server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0


def test_a_client_that_goes_away_takes_its_request_back(servers: Any, server: Any) -> None:
    body = {"text": "x", "sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True}}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/generate", json=body, timeout=0.2)
    servers.until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0)


def test_children_have_sglangs_titles_and_hold_memory(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, "--tp-size", "8", preset=servers.KIMI, speed=3000) as server:
        titles = [child.cmdline()[0] for child in psutil.Process(server.process.pid).children()]
        assert titles == [f"sglang::scheduler_TP{rank}" for rank in range(8)] + ["sglang::detokenizer"]
        samples = SimulatedGpus(server.gpu_state).read()
        assert len(samples) == 8
        assert all((sample.memory_used_bytes or 0) > 80 * 2**30 for sample in samples)
        assert [sample.processes[0].name for sample in samples] == titles[:8]


def test_sigterm_drains_and_ends_with_zero(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, speed=200) as server:
        assert server.get("/metrics").status_code == 404  # without --enable-metrics
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(server.generate(output=20_000).status_code))
        asking.start()
        servers.until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_gone() == 0
        asking.join()
        assert answers == [200]
        assert "Draining requests and shutting down" in server.log


def test_memory_comes_back_after_a_kill_but_not_at_once(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, "--fault", "slow-release:1200") as server:
        children = psutil.Process(server.process.pid).children()
        server.process.kill()
        server.wait_gone()
        servers.until(lambda: not any(_runs(child) for child in children))
        (held,) = SimulatedGpus(server.gpu_state).read()
        assert (held.memory_used_bytes or 0) > 60 * 2**30
        assert held.processes == ()
        gpus = SimulatedGpus(server.gpu_state)
        servers.until(lambda: (gpus.read()[0].memory_used_bytes or 0) < 2**30)


def test_a_scheduler_that_is_killed_takes_the_launcher_with_it(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path) as server:
        server.scheduler().kill()
        assert server.wait_gone() == -signal.SIGKILL
        assert "Subprocess scheduler_0" in server.log


def test_a_zombie_scheduler_outlives_the_launcher(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, "--fault", "zombie") as server:
        zombie = server.scheduler()
        server.process.send_signal(signal.SIGTERM)
        server.wait_gone()
        assert _runs(zombie)
        (sample,) = SimulatedGpus(server.gpu_state).read()
        assert [process.pid for process in sample.processes] == [zombie.pid]
        zombie.kill()


def test_an_oom_under_load_kills_itself(servers: Any, tmp_path: Path) -> None:
    flags = ("--mem-fraction-static", "0.98", "--chunked-prefill-size", "16384", "--disable-piecewise-cuda-graph")
    with servers.serving(tmp_path, *flags) as server:
        assert server.get("/health").status_code == 200
        with pytest.raises(httpx.TransportError):
            server.generate(prompt=20_000)
        assert server.wait_gone() == -signal.SIGKILL
        assert "CUDA out of memory. Tried to allocate 1.69 GiB" in server.log
        assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in server.log


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--mem-fraction-static", "0.4"), -9, "minimum viable = 1 - available/pre = 0.4391"),
        (("--fault", "port-taken"), 1, "address already in use"),
        (("--no-such-flag",), 2, "unrecognized arguments: --no-such-flag"),
        (("--sglang-version", "0.5.23", "--cuda-graph-max-bs", "8"), 2, "ambiguous option: --cuda-graph-max-bs"),
        (("--fault", "nonsense"), 2, "nearest valid name"),
        (("--speed", "0"), 2, "argument --speed: must be above 0"),
    ],
)
def test_starts_that_die(servers: Any, tmp_path: Path, flags: tuple[str, ...], code: int, message: str) -> None:
    with servers.launched(tmp_path, *flags, speed=4000) as server:
        assert server.wait_gone() == code
        assert message in server.log
        assert 'Traceback (most recent call last):\n  File "/' not in server.log


def test_a_port_that_somebody_holds_is_found_after_the_start(servers: Any, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with servers.launched(tmp_path, speed=4000, port=holder.getsockname()[1]) as server:
            assert server.wait_gone() == 1
            assert "[Errno 98] error while attempting to bind on address" in server.log
            assert "max_total_num_tokens=" in server.log


def test_api_keys(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, "--enable-metrics", "--api-key", "user", "--admin-api-key", "admin") as server:
        assert server.get("/server_info").status_code == 401
        assert server.get("/server_info").json() == {"error": "Unauthorized"}
        assert server.get("/server_info", Authorization="Bearer user").json()["api_key"] == "user"
        assert (server.get("/metrics").status_code, server.get("/health").status_code) == (200, 200)
        assert server.post("/flush_cache", None, Authorization="Bearer user").status_code == 401
        assert server.post("/flush_cache", None, Authorization="Bearer admin").status_code == 200


def test_service_faults(servers: Any, tmp_path: Path) -> None:
    faults = ("--fault", "metrics-off", "--fault", "unauthorized", "--enable-metrics")
    with servers.serving(tmp_path, *faults) as server:
        assert server.get("/metrics").status_code == 404
        assert server.get("/server_info").status_code == 401


def test_a_stuck_server_answers_health_and_nothing_else(servers: Any, tmp_path: Path) -> None:
    with servers.serving(tmp_path, "--fault", "stuck:0") as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + "/generate", json={"text": "x"}, timeout=0.3)
        assert server.get("/health").status_code == 200


def test_a_leftover_of_another_process_unbalances_the_next_start(servers: Any, tmp_path: Path) -> None:
    flags = ("--tp-size", "8", "--fault", "leftover:3:20")
    with servers.launched(tmp_path, *flags, preset=servers.KIMI, speed=4000) as server:
        assert server.wait_gone() == -signal.SIGKILL
        assert "The memory capacity is unbalanced" in server.log
        assert (SimulatedGpus(server.gpu_state).read()[3].memory_used_bytes or 0) >= 20 * 2**30


def test_a_yaml_file_of_flags(servers: Any, tmp_path: Path) -> None:
    config = tmp_path / "flags.yaml"
    config.write_text("mem-fraction-static: 0.7\nenable-metrics: true\ndisable-radix-cache: false\n")
    with servers.serving(tmp_path, "--config", str(config), "--mem-fraction-static", "0.8") as server:
        assert server.get("/server_info").json()["mem_fraction_static"] == 0.8
        assert server.get("/metrics").status_code == 200
    config.write_text("mem_fraction_static: 0.7\n")
    with servers.launched(tmp_path, "--config", str(config)) as server:
        assert server.wait_gone() == 2
        assert "'mem-fraction-static'" in server.log


def test_the_process_and_virtual_time_are_the_same_model(servers: Any, tmp_path: Path) -> None:
    quiet = ("--fault", "noise:0", "--fault", "drift:0", "--mem-fraction-static", "0.9")
    with servers.serving(tmp_path, *quiet) as server:
        served = server.generate(prompt=1000, output=50).json()["meta_info"]["e2e_latency"]
    box = VirtualBox(load_preset(servers.QWEN), seed=1, faults=("noise:0", "drift:0"))
    engine = box.start(ServerConfig("models/test", 0.9)).engine
    assert engine is not None
    engine.submit(SimRequest("r", ((1, 1000),), 50))
    first_token, event = *engine.advance(100.0), *engine.advance(100.0)
    assert isinstance(first_token, FirstToken)
    assert isinstance(event, Finished)
    assert served == pytest.approx(event.finish_s, rel=1e-6)


def test_version_and_help() -> None:
    command = [sys.executable, "-m", "launcher.simulated"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == "sglang 0.5.17 (simulated by kvtune)\n"
    shown = subprocess.run(
        [*command, "--sglang-version", "0.5.23", "--help"], capture_output=True, text=True, check=True
    )
    assert "--mem-fraction-static" in shown.stdout
    assert "--cuda-graph-max-bs-decode" in shown.stdout


def test_the_box_is_there_before_the_first_server(servers: Any, tmp_path: Path) -> None:
    assert SimulatedGpus(tmp_path / "none").read() == ()
    prepare_gpu_state(tmp_path, load_preset(servers.KIMI))
    samples = SimulatedGpus(tmp_path).read(memory_only=True)
    assert [sample.memory_used_bytes for sample in samples] == [4 * 2**20] * 8


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
