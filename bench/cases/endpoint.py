"""Endpoints: a stub gives the answers of the case, and `ServerReader` makes of them what it makes of any server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.cases.case import Case, Check, behaviour, compared
from bench.cases.names import MISSING, in_sample, is_sentence
from bench.cases.stub import Routes, routes_of, serving
from launcher.errors import ObservationError, Unauthorized, Unreachable
from launcher.failures import Evidence, classify
from launcher.observe.read import ServerReader
from launcher.observe.sample import ServerSample

_KEY = "case-key-that-must-not-be-seen"
_INFO = ("/server_info", "/get_server_info", "/model_info", "/get_model_info")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading gave, and all that a person would be told."""

    sample: ServerSample | None
    error: ObservationError | None

    @property
    def said(self) -> str:
        notes = self.sample.notes if self.sample is not None else ()
        return "; ".join((*notes, *((str(self.error),) if self.error is not None else ())))


def judge(case: Case) -> Iterator[Check]:
    for name in case.inputs:
        content = case.json(name)
        if isinstance(content, list) and "failure_class" in case.expect:
            yield from _progress(case, content)
        elif isinstance(content, list):
            yield from _scenario("server", routes_of(_listed(content)), case.expect)
        elif isinstance(content, Mapping):
            for label, responses in _scenarios(content):
                yield from _scenario(label, routes_of(responses), case.expect)


def _listed(content: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Responses as a list, each with its path."""
    names = ("path", "url", "endpoint", "request")
    return {str(next((one[name] for name in names if name in one), "")): one for one in content}


def _scenarios(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """One server, or several under names of their own (old, new)."""
    if any(" /" in key or key.startswith("/") for key in content):
        yield "server", content
        return
    yield from ((name, part) for name, part in content.items() if isinstance(part, Mapping))


def _scenario(label: str, routes: Routes, expect: Mapping[str, Any]) -> Iterator[Check]:
    keyed = any((path, True) in routes and routes[path, True] != reply for (path, _), reply in routes.items())
    outcomes = {False: read(routes, None)}
    if keyed:
        outcomes[True] = read(routes, _KEY)
    for with_key, outcome in outcomes.items():
        yield from _behaves(f"{label}, {'with' if with_key else 'without'} key", routes, with_key, outcome)
    yield from _expected(label, expect, outcomes[False])


def read(routes: Routes, api_key: str | None) -> Outcome:
    """Serve the routes and read them once."""
    with serving(routes) as url, ServerReader(url, api_key=api_key, timeout_s=5.0) as reader:
        try:
            return Outcome(reader.read(), None)
        except ObservationError as error:
            return Outcome(None, error)


def _behaves(label: str, routes: Routes, with_key: bool, outcome: Outcome) -> Iterator[Check]:
    """What must hold of any answers: the server is up, a key is asked for by name and never shown."""
    metrics = routes.get(("/metrics", with_key))
    status = metrics.status if metrics is not None else 404
    said = outcome.said
    yield behaviour(f"{label}: not called down", not isinstance(outcome.error, Unreachable), said)
    yield behaviour(f"{label}: the key is not shown", _KEY not in said, said)
    if status == 200:
        yield behaviour(f"{label}: metrics are read", outcome.sample is not None, said)
    if status == 401:
        yield behaviour(f"{label}: the key's flag is named", "--api-key" in said, said)
        yield behaviour(f"{label}: said to be unauthorized", isinstance(outcome.error, Unauthorized), outcome.error)
    if status == 404 and metrics is not None:
        yield behaviour(f"{label}: --enable-metrics is named", "--enable-metrics" in said, said)
    infos = [routes[path, with_key] for path in _INFO if (path, with_key) in routes]
    if any(info.status in (401, 403) for info in infos):
        yield behaviour(f"{label}: says that a key is needed", "key" in said, said)
    if any(info.status >= 500 for info in infos):
        yield behaviour(f"{label}: named as unavailable or unsupported", "un" in said, said)


def _expected(label: str, expect: Mapping[str, Any], outcome: Outcome) -> Iterator[Check]:
    """Hints that a person must be given, and figures of what could be read."""
    figures = in_sample(outcome.sample or ServerSample(taken_s=0.0, url=""))
    for key, expected in expect.items():
        if key == "hint":
            yield behaviour(f"{label}: hint {expected}", str(expected) in outcome.said, outcome.said)
        elif key == "failure_class" or is_sentence(expected) or isinstance(expected, Mapping):
            continue
        else:
            got = figures(key)
            yield compared(f"{label}: {key}", expected, "no such figure" if got is MISSING else got)


def _progress(case: Case, events: list[Mapping[str, Any]]) -> Iterator[Check]:
    """A server's life in events: whether the last thing known of it is that requests hang."""
    health = [event["GET /health"] for event in events if "GET /health" in event]
    hangs = any(" 0 tokens" in str(event.get("request", "")) for event in events[-1:])
    evidence = Evidence(answers_health=bool(health) and health[-1] == 200, finished_recently=False if hangs else None)
    failure = classify(evidence)
    yield compared("failure_class", case.expect.get("failure_class"), failure.kind.value if failure else "none")
