"""A tiny server on 127.0.0.1 that gives the answers of a case."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ROUTE = re.compile(r"(?:GET )?(?:https?://[^/\s]+)?(?P<path>/[^\s?]*)(?:\?\S*)?\s*(?:\((?P<who>[^)]*)\))?$")

ORDINARY = {
    "/metrics": 'sglang:num_running_reqs{model_name="m",tp_rank="0"} 1.0\n',
    "/server_info": '{"version": "0.5.17", "model_path": "m", "tp_size": 1, "internal_states": [{}]}',
    "/get_server_info": '{"version": "0.5.6", "model_path": "m", "tp_size": 1, "internal_states": [{}]}',
    "/v1/loads": '{"version": "0.5.17", "loads": [{"dp_rank": 0, "num_running_reqs": 1}]}',
    "/get_load": '[{"dp_rank": 0, "num_reqs": 1, "num_waiting_reqs": 0}]',
    "/get_model_info": '{"model_path": "m"}',
}
"""What an SGLang server says where a case gives a 200 without a body."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Routes = Mapping[tuple[str, bool], Reply]
"""(path, whether a key was sent) -> answer. Everything else is 404."""


def routes_of(responses: Mapping[str, Any]) -> dict[tuple[str, bool], Reply]:
    """The routes of a case's responses: "GET /metrics (no key)": 401, or a mapping with status, body and headers."""
    routes: dict[tuple[str, bool], Reply] = {}
    for route, response in responses.items():
        match = _ROUTE.match(route)
        if match is not None:
            for with_key in _audience(match["who"]):
                routes[match["path"], with_key] = _reply(match["path"], response)
    return routes


def _audience(who: str | None) -> tuple[bool, ...]:
    if who is None:
        return (False, True)
    return (False,) if re.search(r"\bno\b|without", who) else (True,)


def _reply(path: str, response: Any) -> Reply:
    if isinstance(response, int):
        return Reply(response, ORDINARY.get(path, "") if response == 200 else "")
    status = int(response.get("status", 200))
    headers = {str(name): str(value) for name, value in (response.get("headers") or {}).items()}
    if "content_type" in response:
        headers["Content-Type"] = str(response["content_type"])
    if "location" in response:
        headers["Location"] = str(response["location"])
    body = response.get("body", ORDINARY.get(path, "") if status == 200 else "")
    return Reply(status, body if isinstance(body, str) else json.dumps(body), headers)


@contextmanager
def serving(routes: Routes) -> Iterator[str]:
    """Serve while the block runs; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            reply = routes.get((path, "Authorization" in self.headers), Reply(404, '{"detail": "Not Found"}'))
            payload = reply.body.encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *words: object) -> None:
            """A stub says nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
