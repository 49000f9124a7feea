"""Reading servers that answer, refuse, redirect, restart or are something else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.clock import ManualClock
from launcher.config import ServerConfig
from launcher.errors import NotServed, Unauthorized, Unparsable, Unreachable
from launcher.observe.read import INFO_EVERY_S, ServerReader

METRICS = 'sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0\nsglang:max_total_num_tokens{model_name="m"} 1000\n'
INFO = {"version": "0.5.17", "model_path": "m", "tp_size": 2, "mem_fraction_static": 0.9, "internal_states": [{}]}
LOADS = {"version": "0.5.17", "loads": [{"dp_rank": 0, "num_running_reqs": 5, "gen_throughput": 0.0}]}


@dataclass
class Site:
    """What a server answers: path -> (status, body, headers); and what it was asked."""

    pages: dict[str, tuple[int, str, dict[str, str]]]
    key: str | None = None
    open_paths: tuple[str, ...] = ()
    close_after_each: bool = False
    asked: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def serving(site: Site, port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.asked.append(self.path)
            site.keys.append(self.headers.get("Authorization"))
            refused = site.key is not None and self.path not in site.open_paths
            refused = refused and self.headers.get("Authorization") != f"Bearer {site.key}"
            status, body, headers = site.pages.get(self.path, (404, '{"detail": "Not Found"}', {}))
            if refused:
                status, body, headers = 401, '{"error": "Unauthorized"}', {}
            payload = body.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)
            self.close_connection = site.close_after_each

        def log_message(self, *words: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page(body: str | object, status: int = 200, **headers: str) -> tuple[int, str, dict[str, str]]:
    return status, body if isinstance(body, str) else json.dumps(body), headers


def ordinary(**more: tuple[int, str, dict[str, str]]) -> Site:
    return Site({"/metrics": page(METRICS), "/server_info": page(INFO), **more})


def test_metrics_and_server_info_are_one_sample() -> None:
    with serving(ordinary()) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert sample.url == url
    assert sample.sources == ("metrics", "server_info")
    assert sample.ranks[0].running_requests == 3
    assert sample.facts.mem_fraction_static == 0.9
    assert sample.notes == ()


async def test_reading_from_an_event_loop() -> None:
    with serving(ordinary()) as url, ServerReader(url) as reader:
        assert (await reader.aread()).ranks[0].running_requests == 3


def test_server_info_is_asked_rarely() -> None:
    site, clock = ordinary(), ManualClock()
    with serving(site) as url, ServerReader(url, clock=clock) as reader:
        for _ in range(5):
            reader.read()
        assert site.asked.count("/server_info") == 1
        clock._now_s += INFO_EVERY_S
        assert reader.read().taken_s == INFO_EVERY_S
    assert site.asked.count("/server_info") == 2
    assert site.asked.count("/metrics") == 6
    assert "/v1/loads" not in site.asked


def test_flags_that_the_server_dropped_are_noticed() -> None:
    site = ordinary(**{"/server_info": page({**INFO, "disable_radix_cache": False, "api_key": "theirs"})})
    config = ServerConfig("m", flags={"disable-radix-cache": True, "tp-size": 2, "api-key": "ours"})
    with serving(site) as url, ServerReader(url) as reader:
        (sentence,) = reader.not_in_effect(config)
    assert sentence.startswith("disable-radix-cache: True was asked")
    with serving(Site({})) as url, ServerReader(url) as reader:
        assert reader.not_in_effect(config) == ()


def test_another_capacity_is_another_server() -> None:
    site = ordinary()
    site.pages["/server_info"] = page({**INFO, "max_total_num_tokens": 1000})
    with serving(site) as url, ServerReader(url) as reader:
        reader.read()
        site.pages["/metrics"] = page(METRICS.replace("1000", "2000"))
        site.pages["/server_info"] = page({**INFO, "mem_fraction_static": 0.8, "max_total_num_tokens": 2000})
        assert reader.read().facts.mem_fraction_static == 0.8


def test_without_metrics_the_loads_stand_in() -> None:
    site = Site({"/v1/loads": page(LOADS), "/server_info": page(INFO)})
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
        reader.read()
    assert sample.sources == ("loads", "server_info")
    assert sample.ranks[0].running_requests == 5
    assert any("--enable-metrics" in note for note in sample.notes)
    assert site.asked.count("/metrics") == 1


def test_old_builds_have_older_names() -> None:
    site = Site({
        "/get_server_info": page(INFO),
        "/get_load": page([{"dp_rank": 0, "num_reqs": 6, "num_waiting_reqs": 2}]),
    })  # fmt: skip
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert sample.ranks[0].running_requests == 4
    assert sample.facts.mem_fraction_static == 0.9


def test_a_key_is_sent_and_never_shown() -> None:
    site = ordinary()
    site.key = "key-of-the-server"
    with serving(site) as url:
        with ServerReader(url, api_key="key-of-the-server") as reader:
            assert reader.read().notes == ()
        with ServerReader(url, api_key="wrong-key") as reader, pytest.raises(Unauthorized) as refused:
            reader.read()
    assert "--api-key" in str(refused.value)
    assert "the API key was refused" in str(refused.value)
    assert "wrong-key" not in str(refused.value)


def test_metrics_are_open_where_the_rest_needs_a_key() -> None:
    site = ordinary()
    site.key, site.open_paths = "k", ("/metrics",)
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert sample.ranks[0].running_requests == 3
    assert any("API key" in note for note in sample.notes)


def test_redirects_on_the_same_server_are_followed() -> None:
    site = ordinary(**{"/metrics": page("", 307, Location="/metrics/"), "/metrics/": page(METRICS)})
    with serving(site) as url, ServerReader(url) as reader:
        assert reader.read().ranks[0].running_requests == 3


def test_a_redirect_elsewhere_is_not_followed_with_the_key() -> None:
    there = ordinary()
    with serving(there) as other:
        here = Site({"/metrics": page("", 302, Location=f"{other}/metrics")})
        with serving(here) as url, ServerReader(url, api_key="k") as reader, pytest.raises(Unparsable) as refused:
            reader.read()
    assert other in str(refused.value)
    assert there.asked == []


def test_a_redirect_in_a_circle_ends() -> None:
    site = Site({"/metrics": page("", 307, Location="/metrics")})
    with serving(site) as url, ServerReader(url) as reader, pytest.raises(Unparsable, match="circle"):
        reader.read()


def test_a_path_in_front_of_the_server_is_kept() -> None:
    site = Site({"/models/a/metrics": page(METRICS), "/models/a/server_info": page(INFO)})
    with serving(site) as url, ServerReader(f"{url}/models/a/") as reader:
        assert reader.read().sources == ("metrics", "server_info")


@pytest.mark.parametrize(
    "pages",
    [
        {"/metrics": page("<html>502</html>")},
        {"/get_model_info": page("Model info endpoint not yet implemented", 501)},
        {"/metrics": page("vllm:num_requests_running 1\n")},
        {"/server_info": page("upstream connect error", 503)},
    ],
)
def test_routers_and_other_programs_are_called_by_name(pages: dict[str, tuple[int, str, dict[str, str]]]) -> None:
    with serving(Site(pages)) as url, ServerReader(url) as reader, pytest.raises(Unparsable, match="router or an"):
        reader.read()


def test_up_but_nothing_served() -> None:
    site = Site({"/health": page(""), "/get_model_info": page({"model_path": "m"})})
    with serving(site) as url, ServerReader(url) as reader, pytest.raises(NotServed, match="--enable-metrics"):
        reader.read()


def test_a_server_info_that_fails_leaves_the_metrics() -> None:
    with serving(ordinary(**{"/server_info": page("oops", 500)})) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert sample.ranks[0].running_requests == 3
    assert any("/server_info is unavailable (HTTP 500)" in note for note in sample.notes)


def test_nan_in_json_is_not_known() -> None:
    body = '{"version": "0.5.16", "tp_size": 1, "internal_states": [{"last_gen_throughput": NaN}, {}], "dp_size": 2}'
    site = Site({"/metrics": page(METRICS), "/server_info": page(body)})
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert len(sample.ranks) == 2
    assert sample.ranks[0].gen_tokens_per_s is None
    assert any("1 of 2 dp ranks" in note for note in sample.notes)


def test_loads_fill_up_the_ranks_that_metrics_hide() -> None:
    both = {"version": "0.5.9", "loads": [{"dp_rank": 0, "num_running_reqs": 1}, {"dp_rank": 1, "num_running_reqs": 2}]}
    info = {**INFO, "dp_size": 2, "enable_dp_attention": True, "internal_states": [{}, {}]}
    site = Site({"/metrics": page(METRICS), "/server_info": page(info), "/v1/loads": page(both)})
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
    assert [rank.running_requests for rank in sample.ranks] == [3, 2]
    assert sample.notes == ()


def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    site = ordinary()
    with serving(site) as url, ServerReader(url) as reader:
        reader.read()
        site.close_after_each = True
        for _ in range(3):
            assert reader.read().ranks[0].running_requests == 3


def test_a_server_that_went_away_and_came_back() -> None:
    first = ordinary()
    first.close_after_each = True
    with serving(first) as url:
        pass
    with ServerReader(url) as reader:
        with serving(first, int(url.rpartition(":")[2])):
            reader.read()
        with pytest.raises(Unreachable):
            reader.read()
        second = ordinary(**{"/server_info": page({**INFO, "mem_fraction_static": 0.5})})
        with serving(second, int(url.rpartition(":")[2])):
            assert reader.read().facts.mem_fraction_static == 0.5


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "http://no-such-host.invalid:30000"])
def test_nobody_there(url: str) -> None:
    with ServerReader(url, timeout_s=2.0) as reader, pytest.raises(Unreachable):
        reader.read()


def test_the_capture_of_a_real_server(shared: Path) -> None:
    captures = shared / "captures" / "h200-sglang-0.5.17"
    site = Site({
        "/metrics": page((captures / "dshic-64.metrics.txt").read_text()),
        "/server_info": page((captures / "dshic.server_info.json").read_text()),
    })  # fmt: skip
    with serving(site) as url, ServerReader(url) as reader:
        sample = reader.read()
    (rank,) = sample.ranks
    assert (rank.running_requests, rank.queued_requests, rank.used_tokens) == (26, 38, 99094)
    assert (rank.capacity_tokens, rank.hicache_total_tokens, rank.max_running_requests) == (100000, 643005, 2048)
    assert sample.totals.generation_tokens == 4200
    assert sample.totals.cached_tokens_by_source == {"device": 102000, "host": 12000}
    assert sample.facts.headroom_gib == pytest.approx(104.0218)
    assert sample.e2e is not None
    assert sample.e2e.count == 40
