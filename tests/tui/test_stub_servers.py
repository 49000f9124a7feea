"""`kvtop --once --json` against servers that answer as the field cases did."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tui.cli import run

Answer = tuple[int, str, str]
"""(status, content type, body)"""
Routes = Mapping[str, "Answer | Callable[[Mapping[str, str]], Answer]"]


@contextmanager
def serving(routes: Routes) -> Iterator[str]:
    """A server on a free port of this machine; what it has no route for is 404."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            route = routes.get(self.path.split("?")[0], (404, "application/json", '{"detail": "Not Found"}'))
            status, kind, body = route(dict(self.headers)) if callable(route) else route
            raw = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def text(body: str, status: int = 200) -> Answer:
    return status, "text/plain", body


def told(body: object, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(body)


@pytest.fixture
def once(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The whole document of `kvtop --once --json` for servers with these routes."""

    def look(*servers: Routes, argv: tuple[str, ...] = (), code: int = 0) -> dict[str, Any]:
        from contextlib import ExitStack

        with ExitStack() as stack:
            urls = [stack.enter_context(serving(routes)) for routes in servers]
            named = [word for url in urls for word in ("--url", url)]
            assert run(["--once", "--json", "--no-gpu", *named, *argv], {"HOME": "/nonexistent"}) == code
        document = json.loads(capsys.readouterr().out)
        assert document["schema_version"] == 1
        return document  # type: ignore[no-any-return]

    return look


def case(shared: Path, number: str) -> tuple[Path, dict[str, Any]]:
    (folder,) = (shared / "cases").glob(f"{number}-*")
    return folder, json.loads((folder / "case.json").read_text())["expect"]


Once = Callable[..., dict[str, Any]]


def test_55_metrics_without_rank_labels_and_without_capacity(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "55")
    (server,) = once({"/metrics": text((folder / "metrics.txt").read_text())})["servers"]
    assert server["facts"]["model_name"] == expect["model"]
    assert server["running_requests"] == expect["running"]
    assert server["queued_requests"] == expect["queued"]
    assert server["kv_used_tokens"] == expect["used_tokens"]
    assert server["kv_capacity_tokens"] is None


def test_56_what_is_missing_is_null_and_not_zero(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "56")
    (server,) = once({"/metrics": text((folder / "metrics.txt").read_text())})["servers"]
    assert server["running_requests"] == expect["running"]
    assert server["kv_used_tokens"] == expect["used_tokens"]
    assert server["server_gen_tokens_per_s"] == pytest.approx(expect["gen_throughput"], abs=1e-5)
    assert server["queued_requests"] is None
    assert server["rates"]["hit_share"] is None
    assert server["rates"]["ttft"] is None


def test_58_eight_dp_ranks_and_one_that_is_hot(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "58")
    document = once({"/metrics": text((folder / "metrics.txt").read_text())})
    (server,) = document["servers"]
    usages = [rank["token_usage_share"] for rank in server["ranks"]]
    assert len(usages) == expect["dp_ranks"]
    assert server["running_requests"] == expect["running_total"]
    assert max(usages) == expect["token_usage_max"]
    assert sum(usages) / len(usages) == pytest.approx(expect["token_usage_mean"])
    assert server["retracted_requests_now"] == expect["retracted_now_total"]
    hot = next(finding for finding in document["findings"] if finding["rule"] == "hot_dp_rank")
    assert "DP rank 3 is 91% full" in hot["evidence"]


def test_59_one_of_eight_ranks_is_not_the_server(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "59")
    info = json.loads((folder / "server_info.json").read_text())
    document = once({"/metrics": text((folder / "metrics.txt").read_text()), "/server_info": told(info)})
    (server,) = document["servers"]
    assert server["server_gen_tokens_per_s"] is None
    assert server["ranks"][0]["gen_tokens_per_s"] == pytest.approx(expect["gen_throughput_shown"])
    assert any("1 of 8 DP ranks" in finding["evidence"] for finding in document["findings"])


def test_61_a_gateways_metrics_are_recognised(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "61")
    (server,) = once({"/metrics": text((folder / "metrics.txt").read_text())})["servers"]
    recognised = server["totals"]["prefill_computed_tokens"] == expect["prefill_compute_tokens"]
    assert recognised or any("gateway" in note for note in server["notes"])


def test_62_hits_come_from_counters(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "62")
    bodies = iter([(folder / "t0.txt").read_text(), *[(folder / "t1.txt").read_text()] * 99])
    routes: Routes = {"/metrics": lambda _: text(next(bodies))}
    (server,) = once(routes, argv=("--window", "1.5", "--interval", "0.5"))["servers"]
    assert server["rates"]["hit_share"] == pytest.approx(expect["hit_rate_window"])


def test_64_pipeline_stages_are_not_summed(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "64")
    nodes = [{"/metrics": text((folder / f"node{n}.txt").read_text())} for n in (0, 1)]
    shown = [server["server_gen_tokens_per_s"] for server in once(*nodes)["servers"]]
    assert shown[0] == pytest.approx(expect["gen_throughput_server"], abs=0.1)
    assert all(figure < expect["must_not"] for figure in shown)


def test_65_the_fullest_pool_of_a_hybrid_model_binds(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "65")
    (server,) = once({"/metrics": text((folder / "metrics.txt").read_text())})["servers"]
    assert server["kv_usage_share"] == expect["pressure"]
    assert server["host_used_tokens"] / server["host_capacity_tokens"] == expect["host_used_frac"]


RUNNING = 'sglang:num_running_reqs{model_name="m"} 3.0\nsglang:num_queue_reqs{model_name="m"} 0.0\n'


def guarded(body: Answer) -> Callable[[Mapping[str, str]], Answer]:
    return lambda headers: (
        body if headers.get("Authorization") == "Bearer sk-1" else told({"error": "Unauthorized"}, 401)
    )


def test_67_an_old_server_wants_a_key_for_its_metrics(once: Once) -> None:
    routes: Routes = {"/metrics": guarded(text(RUNNING)), "/server_info": guarded(told({"version": "0.4.2"})),
                      "/v1/loads": guarded(told({"detail": "Not Found"}, 404))}  # fmt: skip
    document = once(routes, code=1)
    assert document["servers"][0]["reach"] == "locked"
    assert "needs the server's API key" in document["servers"][0]["problem"]
    assert "--api-key" in document["findings"][0]["tries"][0]
    wrong = once(routes, argv=("--api-key", "sk-2"), code=1)
    assert "the API key was refused" in wrong["servers"][0]["problem"]
    (server,) = once(routes, argv=("--api-key", "sk-1"))["servers"]
    assert server["running_requests"] == 3
    assert "sk-1" not in json.dumps(server)


def test_67_a_new_server_tells_its_metrics_without_a_key(once: Once) -> None:
    routes: Routes = {"/metrics": text(RUNNING), "/server_info": guarded(told({"version": "0.5.23"}))}
    (server,) = once(routes)["servers"]
    assert server["reach"] == "up"
    assert server["running_requests"] == 3
    assert any("key" in note for note in server["notes"])


def test_68_metrics_that_are_off_are_no_dead_server(shared: Path, once: Once) -> None:
    loads = json.loads((shared / "captures/h200-sglang-0.5.17/q0.97.loads.json").read_text())
    info = json.loads((shared / "captures/h200-sglang-0.5.17/q0.97.server_info.json").read_text())
    (server,) = once({"/health": text(""), "/v1/loads": told(loads), "/server_info": told(info)})["servers"]
    assert server["reach"] == "up"
    assert server["running_requests"] == 129
    assert server["queued_requests"] == 31
    assert server["kv_capacity_tokens"] == 302_705
    assert any("--enable-metrics" in note for note in server["notes"])


def test_70_a_router_is_told_as_such(once: Once) -> None:
    body = "Model info endpoint not yet implemented in RouterManager"
    routes: Routes = dict.fromkeys(("/get_model_info", "/server_info", "/get_server_info"), text(body, 501))
    document = once(routes, code=1)
    (server,) = document["servers"]
    assert server["reach"] == "foreign"
    assert "is a router or an unsupported server" in server["problem"]
    assert [finding["title"] for finding in document["findings"]] == ["answers, but not as SGLang"]


def test_73_numbers_that_are_none(shared: Path, once: Once) -> None:
    folder, expect = case(shared, "73")
    lenient = (200, "application/json", (folder / "lenient.json").read_text())
    (server,) = once({"/server_info": lenient})["servers"]
    assert server["ranks"][0]["capacity_tokens"] == expect["lenient.json"]["max_total_num_tokens"]
    assert server["server_gen_tokens_per_s"] is None
    assert server["facts"]["kv_cache_gib"] == expect["lenient.json"]["kvcache_gb"]
    assert server["facts"]["graphs_gib"] is None


def test_73_a_server_info_that_fails_costs_only_itself(once: Once) -> None:
    failing = text("Internal Server Error", 500)
    (server,) = once({"/metrics": text(RUNNING), "/server_info": failing, "/get_server_info": failing})["servers"]
    assert server["reach"] == "up"
    assert server["running_requests"] == 3


@pytest.mark.parametrize("body", ["", "<html>login</html>", "sglang:num_running_reqs{", "\x00\xff", "{}"])
def test_nonsense_is_no_crash(once: Once, body: str) -> None:
    document = once({"/metrics": text(body)}, code=1)
    assert document["servers"][0]["problem"]
    assert document["servers"][0]["reach"] == "foreign"


def test_a_capture_of_a_real_server_whole(shared: Path, once: Once) -> None:
    """SGLang 0.5.17 on an H200 at mem-fraction 0.97, 160 clients: the figures of its own metrics."""
    captures = shared / "captures/h200-sglang-0.5.17"
    routes = {
        "/metrics": text((captures / "q0.97-160.metrics.txt").read_text()),
        "/v1/loads": told(json.loads((captures / "q0.97.loads.json").read_text())),
        "/server_info": told(json.loads((captures / "q0.97.server_info.json").read_text())),
    }
    document = once(routes)
    (server,) = document["servers"]
    assert (server["running_requests"], server["queued_requests"]) == (129, 31)
    assert server["kv_used_tokens"] == 273_887
    assert server["kv_capacity_tokens"] == 302_705
    assert server["facts"]["weights_gib"] == pytest.approx(61.04, abs=0.01)
    assert server["facts"]["headroom_gib"] == pytest.approx(2.95, abs=0.01)
    ceiling = next(finding for finding in document["findings"] if finding["rule"] == "kv_ceiling")
    assert ceiling["evidence"].startswith("303 K tokens ÷ 2.12 K in flight per request ≈ 143 running; 31 wait")
