"""Metrics: what the observer makes of /metrics, with /server_info beside it where the case has one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bench.cases.case import Case, Check, behaviour, compared, same
from bench.cases.names import MISSING, Look, first_of, in_mapping, in_sample, is_sentence
from launcher.observe import merge, sample_from_metrics, sample_from_server_info
from launcher.observe.metrics import Metrics
from launcher.observe.payload import read_json
from launcher.observe.prometheus import parse
from launcher.observe.sample import ServerSample, Totals
from tui.rates import Mark, rates_between


class Scrapes:
    """The texts of a case: moments of one server (t0, t1) or its nodes (node0, node1)."""

    def __init__(self, case: Case) -> None:
        texts = {name: case.text(name) for name in case.inputs if not name.endswith(".json")}
        if all(name.startswith("node") for name in texts):
            texts = {"all nodes": "\n".join(texts.values())}
        self.samples = [_with_info(sample_from_metrics(text), case) for text in texts.values()]
        self.metrics = Metrics(parse(list(texts.values())[-1]))

    @property
    def now(self) -> ServerSample:
        return self.samples[-1]


def _with_info(sample: ServerSample, case: Case) -> ServerSample:
    infos = [sample_from_server_info(read_json(case.text(name), name)) for name in case.inputs if "info" in name]
    return merge(sample, *infos)


def judge(case: Case) -> Iterator[Check]:
    scrapes = Scrapes(case)
    for key, expected in case.expect.items():
        yield from _checks(key, expected, scrapes)


def _checks(key: str, expected: Any, scrapes: Scrapes) -> Iterator[Check]:
    if key == "missing":
        for name in expected:
            yield behaviour(f"{name} is not known, and not 0", *_is_unknown(name, scrapes))
    elif key in ("must_flag", "flag", "warning"):
        yield behaviour(f"a note says: {expected}", _is_noted(str(expected), scrapes.now), scrapes.now.notes)
    elif key == "must_not" and isinstance(expected, int | float):
        totals = [rank.gen_tokens_per_s for rank in scrapes.now.ranks]
        yield behaviour(f"no figure is {expected}", not any(same(expected, value) for value in totals), totals)
    elif key in ("alert", "hot_rank"):
        yield from _hottest(str(expected), scrapes.now)
    elif isinstance(expected, Mapping):
        yield from _by_rank(key, expected, scrapes.now)
    elif not is_sentence(expected):
        got = _look(scrapes)(key)
        yield compared(key, expected, "no such figure" if got is MISSING and expected is not None else _known(got))


def _by_rank(key: str, expected: Mapping[str, Any], sample: ServerSample) -> Iterator[Check]:
    """A figure of each DP rank, under the rank's number."""
    for rank in sample.ranks:
        wanted = expected.get(str(rank.dp_rank), expected.get(f"dp{rank.dp_rank}", MISSING))
        if wanted is not MISSING:
            one = replace(sample, ranks=(rank,))
            yield compared(f"{key} of DP rank {rank.dp_rank}", wanted, _known(in_sample(one)(key)))


def _known(value: Any) -> Any:
    return None if value is MISSING else value


def _is_unknown(name: str, scrapes: Scrapes) -> tuple[bool, Any]:
    short = re.sub(r"^sglang[:_]", "", name)
    found = scrapes.metrics.series(short, f"{short}_count")
    filled = [field for field in _FIELDS_OF.get(short, ()) if _held(scrapes.now, field) is not None]
    return not found and not filled, filled or found


_FIELDS_OF = {
    "num_queue_reqs": ("queued_requests",),
    "num_running_reqs": ("running_requests",),
    "num_used_tokens": ("used_tokens",),
    "token_usage": ("token_usage_share",),
    "gen_throughput": ("gen_tokens_per_s",),
    "max_total_num_tokens": ("capacity_tokens",),
    "time_to_first_token_seconds": ("ttft",),
    "inter_token_latency_seconds": ("itl",),
    "e2e_request_latency_seconds": ("e2e",),
    "generation_tokens_total": ("generation_tokens",),
    "prompt_tokens_total": ("prompt_tokens",),
}


def _held(sample: ServerSample, field: str) -> Any:
    places = (sample, sample.totals, *sample.ranks)
    return next((value for place in places if (value := getattr(place, field, None)) is not None), None)


def _is_noted(sentence: str, sample: ServerSample) -> bool:
    """A note that names every number of the sentence."""
    numbers = set(re.findall(r"\d+", sentence))
    return any(numbers <= set(re.findall(r"\d+", note)) for note in sample.notes)


def _hottest(sentence: str, sample: ServerSample) -> Iterator[Check]:
    named = re.search(r"rank (\d+)", sentence)
    if named is not None:
        hottest = max(sample.ranks, key=lambda rank: rank.token_usage_share or 0.0)
        yield compared("the hottest DP rank", int(named[1]), hottest.dp_rank)


def _look(scrapes: Scrapes) -> Look:
    """Figures of the scrape, then of the sample, then a metric by its own name."""
    return first_of(
        in_mapping(_figures(scrapes)),
        lambda name: _difference(scrapes, name),
        in_sample(scrapes.now),
        lambda name: _raw(scrapes.metrics, name),
    )


def _figures(scrapes: Scrapes) -> Mapping[str, Any]:
    now, before = scrapes.now.totals, scrapes.samples[0].totals
    gauge = scrapes.metrics.one("cache_hit_rate")
    return {
        "recognized_as": "sglang" if scrapes.metrics.recognised else None,
        "cache_hit_rate": gauge,
        "gauge": gauge,
        "hit_rate_window": _hit_share(before, now),
        "hit_rate_lifetime": _hit_share(_NOTHING_YET, now),
        "hit_rate_lifetime_t0": _hit_share(_NOTHING_YET, before),
        "hit_rate_lifetime_t1": _hit_share(_NOTHING_YET, now),
    }


_NOTHING_YET = Totals(prompt_tokens=0.0, prefill_computed_tokens=0.0, prefill_cached_tokens=0.0)


def _hit_share(old: Totals, new: Totals) -> float | None:
    """As the monitor shows it, of the time between two samples."""
    began, ended = Mark(0.0, old, True, None, None, None), Mark(1.0, new, True, None, None, None)
    return rates_between(began, began, ended).hit_share


def _difference(scrapes: Scrapes, name: str) -> Any:
    """`generation_tokens_delta`: what a counter grew by between the first text and the last."""
    field = re.sub(r"(?:_total)?_(?:delta|window|grown)$", "", name)
    if field == name or not hasattr(scrapes.now.totals, field):
        return MISSING
    new, old = getattr(scrapes.now.totals, field), getattr(scrapes.samples[0].totals, field)
    return None if new is None or old is None or new < old else new - old


def _raw(metrics: Metrics, name: str) -> Any:
    """A metric by its name, with or without what SGLang puts around it."""
    short = re.sub(r"^sglang[:_]", "", name)
    for candidate in (short, f"num_{short}", f"{short}_total", f"{short}_tokens", f"{short}_reqs", f"num_{short}_reqs"):
        value = metrics.over_pools(candidate)
        if value is not None:
            return value
    return MISSING
