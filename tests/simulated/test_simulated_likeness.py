"""The simulated server against real ones, key by key: what it answers alike, and the list of what it lacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.calibration.likeness import (
    clashes,
    json_shape,
    line_shapes,
    metric_shapes,
    metric_types,
    stream_events,
)

SIMULATION_ONLY = {"simulated", "simulated_preset", "simulated_speed"}
LACKS_MODEL_INFO = re.compile(r"embedding\.")
"""What embedding models tell."""
LACKS_LOADS = re.compile(r"loads\[\]\.decode_moments")
LACKS_SERVER_INFO = re.compile(
    r"""
      (internal_states\[\]\.)?(
        cuda_graph_config\.(decode|prefill)\.(full_prefill_.*|bs\[\]|max_bs)   # lists of graphs of the prefill phase
      | _\w+.* | grpc_worker_threads | max_speculative_num_draft_tokens        # internals of its argument class
      | allowed_media_domains | c128_page_size | disaggregation_decode_retraction_backup | image_processor_backend
      | enable_tp_lm_head_all_to_all | expert_balancedness_report_mode | http2_max_concurrent_streams
      | language_model_only | media_url_max_file_size_mb | mlx_enable_sampling | mm_global_cache_backend
      | mm_preprocess_cache_size_mb | speculative_draft_kv_cache_dtype | startup_weight_load_mode
      | trust_mm_content_hashes                                                # new flags of 0.5.18
      )$""",
    re.VERBOSE,
)
LACKS_METRICS = re.compile(
    r"sglang:(num_unique_running_routing_keys|per_stage_req_latency_seconds|process_cpu_seconds_total|routing_key"
    r"|uncached_prompt_tokens_histogram|get_loads_duration_seconds|eviction_duration_seconds"
    r"|load_back_duration_seconds|prefill_effective_tokens_total)"
)
"""Routing keys, stages, CPU seconds, durations of cache work; prefill_effective_tokens_total only from 0.5.18."""
ENDPOINTS = (
    "/get_load", "/get_model_info", "/get_server_info", "/health", "/health_generate", "/metrics", "/model_info",
    "/server_info", "/v1/loads", "/v1/models",
)  # fmt: skip
LACKS_ENDPOINTS = {"/freeze_gc", "/openapi.json"}
"""Asked by the script that made the captures; not served here."""


def _json(path: Path) -> Any:
    """A captured body: some captures begin with a line of the status and headers."""
    text = path.read_text()
    return json.loads(text[text.index("\n") + 1 :] if text.startswith("HTTP") else text)


@pytest.fixture(scope="module")
def served(servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a simulated server says after a load that fills its pool, and what it leaves in its log."""
    flags = (
        "--enable-metrics",
        "--skip-tokenizer-init",
        "--max-total-tokens",
        "4096",
        "--schedule-conservativeness",
        "0.1",
    )
    with servers.serving(tmp_path_factory.mktemp("like"), *flags, speed=25) as server:
        yield interview(server.url, lambda: server.log, lambda: server.process.send_signal(signal.SIGTERM), server)


def interview(url: str, log: Any, stop: Any, server: Any) -> dict[str, Any]:
    """The client script: the same requests to whatever server it is given."""

    def ask(number: int) -> None:
        sampling = {"max_new_tokens": 150 + 40 * number, "ignore_eos": True}
        ids = [(number * 31 + place) % 400 for place in range(200)]
        httpx.post(url + "/generate", json={"input_ids": ids, "sampling_params": sampling}, timeout=120)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    body = {"input_ids": list(range(30)), "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    first, again = (httpx.post(url + "/generate", json=body, timeout=60).json() for _ in range(2))
    answers: dict[str, Any] = {"uncached": first, "generate": again}
    answers["stream"] = httpx.post(url + "/generate", json={**body, "stream": True}, timeout=60).text
    for path in ("server_info", "model_info", "v1/loads?include=all", "v1/models"):
        answers[path] = httpx.get(f"{url}/{path}", timeout=60).json()
    answers["statuses"] = {path: httpx.get(url + path, timeout=60).status_code for path in ENDPOINTS}
    answers["metrics"] = httpx.get(url + "/metrics", timeout=60).text
    stop()
    server.wait_gone()
    answers["log"] = log()
    return answers


def _compare(real: Any, simulated: Any, lacks: re.Pattern[str]) -> None:
    ours, theirs = json_shape(simulated), json_shape(real)
    assert clashes(theirs, ours) == set()
    assert sorted(path for path in theirs.keys() - ours.keys() if not lacks.match(path)) == []


NOTHING = re.compile(r"(?!)")


def test_generate(shared: Path, served: dict[str, Any]) -> None:
    real = _json(shared / "captures/cpu-sglang-0.5.18/llama2k.generate.json")
    _compare(real, served["generate"], NOTHING)
    assert json_shape(served["generate"]).keys() == json_shape(real).keys()


def test_stream(shared: Path, served: dict[str, Any]) -> None:
    text = (shared / "captures/cpu-sglang-0.5.18/llama2k.generate_stream.txt").read_text()
    real, ours = list(stream_events(text)), list(stream_events(served["stream"]))
    _compare(real[-1], ours[-1], NOTHING)
    assert [event["meta_info"]["finish_reason"] is None for event in ours] == [True] * (len(ours) - 1) + [False]


def test_model_info(shared: Path, served: dict[str, Any]) -> None:
    real = _json(shared / "captures/cpu-sglang-0.5.18/llama2k.model_info")
    _compare(real, served["model_info"], LACKS_MODEL_INFO)


def test_loads(shared: Path, served: dict[str, Any]) -> None:
    for capture in ("cpu-sglang-0.5.18/llama2k.v1_loads_load_03", "h200-sglang-0.5.17/dshic.loads.json"):
        real = _json(shared / "captures" / capture)
        _compare(real, served["v1/loads?include=all"], LACKS_LOADS)


@pytest.mark.parametrize(
    "capture", ["cpu-sglang-0.5.18/llama2k.server_info", "h200-sglang-0.5.17/q85.server_info.json"]
)
def test_server_info(shared: Path, served: dict[str, Any], capture: str) -> None:
    real = _json(shared / "captures" / capture)
    _compare(real, served["server_info"], LACKS_SERVER_INFO)


@pytest.mark.parametrize(
    "capture", ["cpu-sglang-0.5.18/llama2k.metrics_after", "h200-sglang-0.5.17/q85-32.metrics.txt"]
)
def test_metrics(shared: Path, served: dict[str, Any], capture: str) -> None:
    real = (shared / "captures" / capture).read_text()
    missing = metric_shapes(real) - metric_shapes(served["metrics"])
    assert sorted(shape for shape in missing if not LACKS_METRICS.match(shape)) == []
    theirs, ours = metric_types(real), metric_types(served["metrics"])
    assert {name: ours[name] for name in ours.keys() & theirs.keys()} == {
        name: theirs[name] for name in ours.keys() & theirs.keys()
    }


def test_metrics_of_a_host_tier(shared: Path, servers: Any, tmp_path: Path) -> None:
    real = (shared / "captures/h200-sglang-0.5.17/dshic-64.metrics.txt").read_text()
    flags = ("--enable-metrics", "--enable-hierarchical-cache", "--hicache-size", "20", "--max-total-tokens", "4096")
    with servers.serving(tmp_path, *flags) as server:
        for turn in range(3):
            for number in range(4):
                assert server.generate(prompt=1300, output=4, first_id=2000 * number).status_code == 200, turn
        missing = metric_shapes(real) - metric_shapes(server.get("/metrics").text)
    assert sorted(shape for shape in missing if not LACKS_METRICS.match(shape)) == []


@pytest.mark.parametrize("capture", ["cpu-sglang-0.5.18/llama2k.server.log", "h200-sglang-0.5.17/q85.log"])
def test_log_lines(shared: Path, served: dict[str, Any], capture: str) -> None:
    text = (shared / "captures" / capture).read_text(errors="replace")
    # 0.5.18 on a CPU says so, and renamed one word of the cache's line.
    text = text.replace("cpu graph", "cuda graph").replace("available_cpu_mem", "available_gpu_mem")
    real, ours = line_shapes(text.replace("hicache_attached", "hierarchical")), line_shapes(served["log"])
    assert {begin: ours.get(begin) for begin in real} == real


def test_endpoints_that_the_captures_asked_for(shared: Path, served: dict[str, Any]) -> None:
    real = (shared / "captures/cpu-sglang-0.5.18/llama2k.metrics_after").read_text()
    asked = set(re.findall(r'http_requests_total\{endpoint="([^"]+)",method="GET"', real))
    assert asked - set(served["statuses"]) <= LACKS_ENDPOINTS
    assert set(served["statuses"].values()) == {200}
    assert served["v1/models"]["data"]


@pytest.mark.sglang
def test_against_a_live_sglang(served: dict[str, Any], servers: Any, tmp_path: Path) -> None:
    """The same script, the same questions, to a real SGLang on the CPU and to the simulated one."""
    with _real_sglang(servers, tmp_path) as (url, process, log_path):
        real = interview(url, log_path.read_text, process.terminate, _Waiter(process))
    _compare(real["generate"], served["generate"], NOTHING)
    _compare(real["uncached"], served["uncached"], NOTHING)
    assert [event["meta_info"].keys() for event in stream_events(real["stream"])][-1] == (
        [event["meta_info"].keys() for event in stream_events(served["stream"])][-1]
    )
    _compare(real["model_info"], served["model_info"], LACKS_MODEL_INFO)
    _compare(real["v1/loads?include=all"], served["v1/loads?include=all"], LACKS_LOADS)
    _compare(real["server_info"], served["server_info"], LACKS_SERVER_INFO)
    missing = metric_shapes(real["metrics"]) - metric_shapes(served["metrics"])
    assert sorted(shape for shape in missing if not LACKS_METRICS.match(shape)) == []


class _Waiter:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait_gone(self) -> int:
        return self._process.wait(120)


@contextlib.contextmanager
def _real_sglang(servers: Any, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], Path]]:
    python, model = os.environ.get("KVTUNE_SGLANG_PYTHON"), os.environ.get("KVTUNE_TINY_LLAMA")
    if not python or not model:
        pytest.fail("this test needs the real SGLang: run it with `make test-sglang`")
    port, log_path = servers.free_port(), tmp_path / "sglang.log"
    words = [
        *(python, "-m", "sglang.launch_server", "--model-path", model, "--skip-tokenizer-init", "--device", "cpu"),
        *("--attention-backend", "torch_native", "--enable-metrics", "--max-total-tokens", "4096"),
        *("--mem-fraction-static", "0.05", "--schedule-conservativeness", "0.1", "--port", str(port)),
    ]
    calm = {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with log_path.open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **calm}, start_new_session=True)
    try:
        for _ in range(8):
            with contextlib.suppress(AssertionError):
                servers.until(lambda: "fired up" in log_path.read_text() or process.poll() is not None)
                break
        yield f"http://127.0.0.1:{port}", process, log_path
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
