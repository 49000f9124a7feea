"""/server_info: figures from its JSON, and what is made of a server that cannot give it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, behaviour, compared
from bench.cases.endpoint import read
from bench.cases.names import MISSING, first_of, in_mapping, in_object, is_sentence, sample_figures
from bench.cases.stub import Reply, routes_of
from launcher.observe.sample import RankSample


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
    rank = sample.ranks[0] if sample.ranks else RankSample()
    look = first_of(in_mapping(sample_figures(sample)), in_object(sample.facts, rank))
    for key, expected in wanted.items():
        if not is_sentence(expected) and not isinstance(expected, Mapping):
            got = look(key)
            yield compared(f"{name}: {key}", expected, "no such figure" if got is MISSING else got)


def _reply(text: str) -> Reply:
    """The JSON itself, or a description of an answer: {"status": 500, ...}."""
    import json

    content = json.loads(text)
    if isinstance(content, Mapping) and isinstance(content.get("status"), int):
        return Reply(content["status"], str(content.get("body", "Internal Server Error")))
    return Reply(200, text)
