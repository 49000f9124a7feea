"""/server_info: figures from its JSON, and what is made of a server that cannot give it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, behaviour, compared
from bench.cases.endpoint import read
from bench.cases.names import MISSING, in_sample, is_sentence
from bench.cases.stub import Reply, routes_of


def judge(case: Case) -> Iterator[Check]:
    for name, wanted in case.scopes():
        yield from _served(name, case.text(name), wanted)


def _served(name: str, text: str, wanted: Mapping[str, Any]) -> Iterator[Check]:
    """Answered by a stub whose metrics are on, so that the rest must go on whatever /server_info does."""
    routes = routes_of({"/metrics": 200}) | {("/server_info", False): _reply(text)}
    outcome = read(routes, None)
    sample = outcome.sample
    yield behaviour(f"{name}: the rest is read", sample is not None and bool(sample.ranks), outcome.said)
    if sample is None:
        return
    if routes["/server_info", False].status != 200:
        yield behaviour(f"{name}: a note says so", "/server_info" in outcome.said, outcome.said)
    look = in_sample(sample)
    for key, expected in wanted.items():
        if not is_sentence(expected) and not isinstance(expected, Mapping):
            got = look(key)
            yield compared(f"{name}: {key}", expected, "no such figure" if got is MISSING else got)


def _reply(text: str) -> Reply:
    """The JSON itself, or a description of an answer: {"status": 500, ...}."""
    content = json.loads(text)
    if isinstance(content, Mapping) and isinstance(content.get("status"), int):
        return Reply(content["status"], str(content.get("body", "Internal Server Error")))
    return Reply(200, text)
