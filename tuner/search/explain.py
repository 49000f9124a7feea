"""The search in words: why a start is proposed, and what a study has found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tuner import budget
from tuner.search.candidates import Candidate
from tuner.search.feasibility import Outlook
from tuner.search.knowledge import Knowledge
from tuner.search.levels import is_full, longest_share
from tuner.search.residence import answer_s, budget_for, longest_level_s, needed_s
from tuner.search.standings import TIE_SHARE, Standing
from tuner.space import ELEMENT_BYTES, Space, overrides
from tuner.trial import Setting

Z95 = 1.96
UNSURE_SHARE = 0.05
"""Of the predicted tokens: what is surer than this is told without its doubt."""
FULL_USAGE = 0.88
COMPUTE_BOUND_SHARE = 0.75


def name_of(setting: Setting) -> str:
    """A setting in a few words: `0.90 fp8_e4m3 HiCache 20 GB chunked-prefill-size=8192`."""
    fraction = "default" if setting.mem_fraction_static is None else f"{setting.mem_fraction_static:.3g}"
    hicache = [f"HiCache {setting.hicache_size_gb} GB"] if setting.hicache_size_gb else []
    flags = [f"{name}={value}" for name, value in setting.flags.items()]
    return " ".join([fraction, setting.kv_cache_dtype, *hicache, *flags])


def memory_words(outlook: Outlook) -> str:
    """`predicted 188 K tokens, 3.6 GiB headroom, 97% to survive`."""
    chance = f"{100 * outlook.survival:.0f}% to survive"
    if outlook.tokens is None or outlook.headroom_gib is None:
        return chance
    doubt = 2 * (outlook.tokens_sd or 0.0)
    unsure = f" ± {doubt / 1000:.0f}" if doubt > UNSURE_SHARE * outlook.tokens else ""
    held = f"predicted {outlook.tokens / 1000:.0f}{unsure} K tokens"
    return f"{held}, {outlook.headroom_gib:.1f} GiB headroom, {chance}"


def gain_words(candidate: Candidate, incumbent_log_rate: float) -> str:
    """`expected +9% ± 4%` against the incumbent."""
    gain = math.expm1(candidate.log_rate - incumbent_log_rate)
    return f"expected {100 * gain:+.0f}% ± {100 * Z95 * candidate.log_sd:.0f}%"


def explanation(knowledge: Knowledge, ranked: Sequence[Standing], *, clear: bool, exported: Setting | None) -> str:
    """What binds, what each knob gave, what was exported and why, and what the allowlist left out."""
    if not ranked:
        return _nothing_measured(knowledge)
    winner = ranked[0]
    sentences = [
        _winner_words(winner, ranked, knowledge.space, clear=clear),
        _binding_words(knowledge, winner),
        *_seconds_words(knowledge, winner),
        *_knob_words(winner, ranked),
        *_export_words(knowledge, winner, exported),
        *_untried_words(knowledge),
        *_allowlist_words(knowledge, winner),
        *_failure_words(knowledge),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _nothing_measured(knowledge: Knowledge) -> str:
    missed = _missed_slo_words(knowledge)
    return " ".join([missed or "Nothing was measured yet.", *_failure_words(knowledge)])


def _missed_slo_words(knowledge: Knowledge) -> str | None:
    """Where levels were measured and no response of any kept the SLOs."""
    judged = [
        (level.completion_rate.value, trial.proposal.setting, level)
        for trial in knowledge.history
        for level in trial.levels
        if level.goodput_tokens_per_s == 0
    ]
    if not judged:
        return None
    rate, setting, level = max(judged, key=lambda one: one[0])
    first = "" if level.ttft_s is None else f", TTFT p95 {level.ttft_s.p95:.2f} s"
    last = "" if level.e2e_s is None else f", E2E p95 {level.e2e_s.p95:.1f} s"
    return (
        f"No response of any level kept the SLO: {name_of(setting)} at concurrency {level.concurrency} completed "
        f"{rate:,.0f} tokens/s{first}{last}. Loosen the SLO or allow lower concurrency."
    )


def _winner_words(winner: Standing, ranked: Sequence[Standing], space: Space, *, clear: bool) -> str:
    half_width = 100 * winner.measured.half_width / winner.measured.value
    best = (
        f"Best: {name_of(winner.setting)} at concurrency {winner.concurrency}: "
        f"{winner.measured.value:,.0f} tokens/s ± {half_width:.1f}% ({winner.starts} start(s))."
    )
    if len(ranked) == 1:
        return f"{best} No other setting was measured."
    second = ranked[1]
    other = f"{name_of(second.setting)} at concurrency {second.concurrency}"
    ahead = 100 * (winner.measured.value / second.measured.value - 1)
    if clear:
        return f"{best} It is {ahead:.1f}% ahead of {other}."
    behind = 100 * (second.measured.value / winner.measured.value - 1)
    return (
        f"{best} No clear winner: {other} measured {second.measured.value:,.0f} tokens/s ({behind:+.1f}%), within the "
        f"noise; {_tie_words(winner, second, space)}."
    )


def _tie_words(winner: Standing, second: Standing, space: Space) -> str:
    """By what the first of two that the noise cannot tell apart stands first."""
    if overrides(winner.setting, space) < overrides(second.setting, space):
        return "the one with fewer overrides stands first"
    if winner.measured.value >= second.measured.value:
        return "the higher rate stands first"
    if winner.headroom_gib > second.headroom_gib:
        return "the one with more headroom stands first"
    return "all levels together put the other one below it"


def _binding_words(knowledge: Knowledge, winner: Standing) -> str:
    """Which limit holds the winner: the pool, the clients, or the decode step itself."""
    levels = [
        point.level
        for point in knowledge.real_points
        if point.trial_id == winner.trial_id and point.concurrency == winner.concurrency
    ]
    level = levels[-1]
    full = is_full(level, longest_share(knowledge, winner.setting))
    if full or (level.token_usage_share or 0) >= FULL_USAGE:
        words = "The KV pool binds"
    elif winner.concurrency >= knowledge.space.concurrency[1]:
        words = "The upper bound of client concurrency binds"
    else:
        words = "Neither the pool nor the clients bind"
    return f"{words}{_slope_words(knowledge, winner)}."


def _slope_words(knowledge: Knowledge, winner: Standing) -> str:
    """How much more room would help: the fitted decode step says."""
    rate = knowledge.rate
    if rate is None or rate.throughput is None:
        return ""
    throughput = rate.throughput
    rows = rate.rows([(winner.setting, winner.concurrency)], [knowledge.tokens(winner.setting)])
    running = float(throughput.running(rows)[0])
    fixed_s, each_s = throughput.step_s
    share = each_s * running / (fixed_s + each_s * running)
    more = 100 * (1 - share) * 0.1
    return (
        f"; a step costs {1000 * fixed_s:.0f} ms + {1000 * each_s:.2f} ms per running request, "
        f"so 10% more running would give about {more:.0f}%"
    )


def _seconds_words(knowledge: Knowledge, winner: Standing) -> list[str]:
    """The first concurrency that promised more, and was left out because its answers take longer than a level may."""
    longest_s = longest_level_s(knowledge)
    rungs = [rung for rung in knowledge.ladder() if rung > winner.concurrency]
    slow = [rung for rung in rungs if needed_s(knowledge, winner.setting, rung) > longest_s + 1.0]
    if not slow:
        return []
    mean, _ = knowledge.rates([(winner.setting, slow[0])])
    if float(mean[0]) <= winner.log_rate + TIE_SHARE:
        return []
    stays_s, level_s = answer_s(knowledge, winner.setting, slow[0]), needed_s(knowledge, winner.setting, slow[0])
    why = "" if stays_s is None else f"a response takes about {stays_s:.0f} s there, "
    return [
        f"Concurrency {slow[0]} and above promises more, but {why}a level needs {level_s:.0f} s, and this budget gives "
        f"it {longest_s:.0f} s: a budget of {budget.words(budget_for(knowledge, level_s))} has room for it."
    ]


def _knob_words(winner: Standing, ranked: Sequence[Standing]) -> list[str]:
    """What each knob gave, by measured settings that differ from the winner in that knob (and the fraction)."""
    words = []
    for other in ranked[1:]:
        knobs = _differing(winner.setting, other.setting)
        if len(knobs) == 1:
            gap = 100 * math.expm1(math.log(winner.measured.value / other.measured.value))
            words.append(f"{knobs[0]}: {gap:+.1f}% over {name_of(other.setting)}.")
    return words[:6]


def _differing(one: Setting, other: Setting) -> list[str]:
    knobs = []
    if one.kv_cache_dtype != other.kv_cache_dtype:
        knobs.append("kv-cache-dtype")
    if one.hicache_size_gb != other.hicache_size_gb:
        knobs.append("hicache-size")
    knobs += [name for name in one.flags if one.flags[name] != other.flags.get(name)]
    if not knobs and one.mem_fraction_static != other.mem_fraction_static:
        knobs.append("mem-fraction-static")
    return knobs


def _export_words(knowledge: Knowledge, winner: Standing, exported: Setting | None) -> list[str]:
    if exported is None or knowledge.options.black_box:
        return []
    outlook = knowledge.outlook(exported)
    transient = knowledge.memory.transient_gib
    margin = (
        f"headroom {outlook.headroom_gib or 0.0:.1f} GiB against a worst transient of "
        f"{transient.mean:.1f} ± {Z95 * transient.sd:.1f} GiB"
    )
    if exported.mem_fraction_static == winner.setting.mem_fraction_static:
        return [f"Exported as measured: {margin}."]
    return [
        f"Exported with mem-fraction-static {exported.mem_fraction_static:.3f} instead of "
        f"{winner.setting.mem_fraction_static:.3f} to keep a margin: {margin}."
    ]


def _untried_words(knowledge: Knowledge) -> list[str]:
    """Values that were to be searched and that no start has had."""
    settings = [trial.proposal.setting for trial in knowledge.history]
    space = knowledge.space
    dtypes = [dtype for dtype in space.kv_cache_dtypes if all(one.kv_cache_dtype != dtype for one in settings)]
    sizes = [size for size in space.hicache_sizes_gb if all(one.hicache_size_gb != size for one in settings)]
    untried = [*dtypes, *(f"hicache-size {size or 'off'}" for size in sizes)]
    for name, values in space.further.items():
        untried += [f"{name} {value}" for value in values if all(one.flags.get(name) != value for one in settings)]
    return [f"Not tried: {', '.join(untried)}."] if untried else []


def _allowlist_words(knowledge: Knowledge, winner: Standing) -> list[str]:
    """What a dtype outside the allowlist would have been worth by the model; said, never tried."""
    if knowledge.options.black_box or "fp8_e4m3" in knowledge.space.kv_cache_dtypes:
        return []
    if ELEMENT_BYTES[winner.setting.kv_cache_dtype] <= 1:
        return []
    rate = knowledge.rate
    if rate is None or rate.throughput is None:
        return []
    other = replace(winner.setting, kv_cache_dtype="fp8_e4m3")
    asked = [(setting, rung) for setting in (winner.setting, other) for rung in knowledge.ladder()]
    tokens = [knowledge.tokens(setting) for setting, _ in asked]
    mean, sd = rate.throughput.log_rate(rate.rows(asked, tokens))
    now, then = np.split(mean, 2)
    gain, doubt = 100 * math.expm1(float(then.max() - now.max())), 100 * Z95 * float(sd.max())
    worth = f"by the model it would be worth {gain:+.0f}% ± {doubt:.0f}%"
    return [f"fp8_e4m3 is not in the allowlist and was not tried; {worth}."]


def _failure_words(knowledge: Knowledge) -> list[str]:
    words, others = [], 0
    for trial in knowledge.history:
        if trial.failure is not None and trial.failure.teaches:
            words.append(f"{name_of(trial.proposal.setting)} failed: {_sentence(trial.failure.sentence)}")
        others += trial.failure is not None and not trial.failure.teaches
    if others:
        words.append(f"{others} start(s) failed through no fault of the configuration and taught nothing.")
    return words


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
