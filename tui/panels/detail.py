"""Pages that open over the screen: one server, one trial, the whole diagnosis, help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tui import format as fmt
from tui.build import usage_of
from tui.panels.binds import ROLE
from tui.panels.look import PARTS, SHORT_NAMES, Look, Role
from tui.panels.row import Pen, Row, wrap
from tui.panels.servers import FULL_HEIGHT, one_server
from tui.panels.study import described, interval, setting
from tui.snapshot import Finding, GpuView, ServerView, Snapshot
from tuner.trial import LevelResult, Percentiles, TrialResult

if TYPE_CHECKING:
    from tuner.journal.view import Incumbent

PART_CELLS = 10
HELP = (
    ("q", "quit"),
    ("? h F1", "this page"),
    ("p space", "pause and go on"),
    ("+ -", "read more or less often; in a replay faster or slower"),
    ("1 2 3 4 5", "show or hide what binds, GPU memory, servers, history, study"),
    ("up down j k", "choose a server or a trial"),
    ("left right", "seek 10 s in a replay (page up, page down: a minute); else scroll the GPUs"),
    ("Enter", "open it; Esc closes"),
    ("d", "the whole diagnosis"),
    ("g", "memory of every GPU by part, in GiB"),
    ("/", "filter servers and trials; Enter keeps it, Esc drops it"),
    ("s", "sort servers and trials another way"),
    ("mouse", "click a line to choose it, again to open it; click a title to hide its panel"),
)
MEANINGS = (
    ("finished", "completion tokens of responses that finished, per second (effective completion rate)"),
    ("decoding", "tokens decoded per second, whether their responses finish or not"),
    ("KV used", "tokens held by running requests"),
    ("KV evictable", "cached prefixes that make room when a request needs it"),
    ("in flight each", "KV tokens that one running request holds, on average"),
    ("retracted", "requests thrown out of a full pool; their prompt is computed again"),
    ("p50 p90 p99", "estimates from the server's histograms: right bucket, right mean"),
    (fmt.UNKNOWN, "not known; kvtop invents nothing"),
)


def help_page(width: int, look: Look) -> list[Row]:
    rows = [_heading("keys", width, look)]
    rows += [Pen(width).gap(2).put(f"{keys:<14}", "key").put(text, "text").row() for keys, text in HELP]
    rows += [Pen(width).row(), _heading("words", width, look)]
    return rows + [Pen(width).gap(2).put(f"{word:<16}", "strong").put(text, "text").row() for word, text in MEANINGS]


def _heading(text: str, width: int, look: Look) -> Row:
    pen = Pen(width).put(look.rule, "rule").gap().put(text, "title").gap()
    return pen.put(look.rule * pen.left, "rule").row()


def diagnosis_page(snapshot: Snapshot, width: int, look: Look) -> list[Row]:
    rows = []
    for server in snapshot.servers:
        rows.append(_heading(f"{server.url}  {server.facts.model_name or ''}", width, look))
        for finding in snapshot.findings_of(server.url):
            rows += finding_rows(finding, width)
    machine = [finding for finding in snapshot.findings if finding.url is None]
    if machine:
        rows.append(_heading("this machine", width, look))
        rows += [row for finding in machine for row in finding_rows(finding, width)]
    return rows or [Pen(width).gap(2).put("no server to diagnose", "dim").row()]


def finding_rows(finding: Finding, width: int) -> list[Row]:
    rows = [Pen(width).gap(2).put(finding.title, ROLE[finding.severity]).row()]
    rows += _paragraph(finding.evidence, width, 4, "text")
    for attempt in finding.tries:
        rows += _paragraph(f"try: {attempt}", width, 4, "dim")
    return rows


def _paragraph(text: str, width: int, indent: int, role: Role) -> list[Row]:
    return [Pen(width).gap(indent).put(line, role).row() for line in wrap(text, width - indent - 1)]


def server_page(server: ServerView, snapshot: Snapshot, width: int, look: Look) -> list[Row]:
    """Everything the server told: figures, findings, DP ranks, facts, notes."""
    rows = [_heading(server.url, width, look), *one_server(server, width, FULL_HEIGHT, look, False)]
    rows.append(_heading("diagnosis", width, look))
    for finding in snapshot.findings_of(server.url):
        rows += finding_rows(finding, width)
    if len(server.ranks) > 1:
        rows += [_heading("DP ranks", width, look), *_ranks(server, width)]
    rows.append(_heading("facts", width, look))
    for item in fields(server.facts):
        value = getattr(server.facts, item.name)
        pen = Pen(width).gap(2).put(f"{item.name:<26}", "dim")
        rows.append(
            pen.put(fmt.UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)).row()
        )
    rows.append(Pen(width).gap(2).put(f"{'read from':<26}", "dim").put(", ".join(server.sources) or fmt.UNKNOWN).row())
    for note in server.notes:
        rows += _paragraph(note, width, 2, "warn")
    return rows


def _ranks(server: ServerView, width: int) -> list[Row]:
    rows = [Pen(width).put("  rank  running  waiting   KV used    capacity  usage", "dim").row()]
    for rank in server.ranks:
        pen = Pen(width).put(f"  {rank.dp_rank:>4}", "strong")
        for figure, cells in ((rank.running_requests, 9), (rank.queued_requests, 9)):
            pen.put(f"{fmt.UNKNOWN if figure is None else figure:>{cells}}")
        pen.put(f"{fmt.count(rank.used_tokens):>10}{fmt.count(rank.capacity_tokens):>12}")
        rows.append(pen.put(f"{fmt.share(usage_of(rank)):>7}").row())
    return rows


def memory_page(snapshot: Snapshot, width: int, look: Look) -> list[Row]:
    """Every GPU's memory by part, in GiB."""
    parts = [part for part in PARTS if any(gpu.parts and getattr(gpu.parts, part) for gpu in snapshot.gpus)]
    rows = [_heading("GPU memory in GiB", width, look)]
    head = Pen(width).put("  GPU", "dim")
    for part in parts:
        head.whole((f"{SHORT_NAMES[part]:>{PART_CELLS}}", part if look.color else "dim"))
    rows.append(head.whole((f"{'total':>{PART_CELLS}}", "dim")).row())
    return rows + [_memory_of(gpu, parts, width) for gpu in snapshot.gpus]


def _memory_of(gpu: GpuView, parts: Sequence[str], width: int) -> Row:
    pen = Pen(width).put(f"{gpu.sample.index:>5}", "dim")
    if gpu.parts is None:
        return pen.put("  lost" if gpu.sample.lost else "  not told by the driver", "dim").row()
    for part in parts:
        pen.whole((f"{fmt.gib(getattr(gpu.parts, part)):>{PART_CELLS}}", "text"))
    return pen.whole((f"{fmt.gib(gpu.sample.memory_total_bytes):>{PART_CELLS}}", "strong")).row()


def trial_page(trial: TrialResult, width: int, look: Look, best: Incumbent | None = None) -> list[Row]:
    """One trial: why proposed, what it predicted, what it measured and how it ended; if it is `best`, the verdict."""
    proposal = trial.proposal
    rows = [_heading(f"trial {trial.trial_id}: {setting(proposal.setting)}", width, look)]
    rows += _paragraph(described(trial), width, 2, "text") + _paragraph(proposal.reason, width, 2, "dim")
    minutes = trial.minutes
    times = f"clean slate {fmt.span(minutes.clean_slate_s)}, start {fmt.span(minutes.start_s)}, measuring "
    times += f"{fmt.span(minutes.measure_s)}, stop {fmt.span(minutes.stop_s)}"
    rows += _paragraph(times, width, 2, "dim")
    rows += _memory(trial, width)
    if trial.failure is not None:
        rows.append(_heading("failure", width, look))
        rows += _paragraph(trial.failure.sentence, width, 2, "bad")
        rows += [row for line in trial.failure.evidence for row in _paragraph(line, width, 4, "dim")]
    if best is not None and best.trial_id == trial.trial_id:
        verdict = f"{interval(best.completion_rate)} tok/s finished at concurrency {best.concurrency}"
        rows += _paragraph(f"the verdict, from all measurements together: {verdict}", width, 2, "finished")
    rows.append(_heading("levels, each as it was measured", width, look))
    for level in trial.levels:
        rows += _level(level, width)
    return rows if trial.levels else [*rows, Pen(width).gap(2).put("none measured", "dim").row()]


def _memory(trial: TrialResult, width: int) -> list[Row]:
    seen = trial.timeline.memory if trial.timeline else None
    tokens, headroom = trial.proposal.predicted_tokens, trial.proposal.predicted_headroom_gib
    told = [f"predicted {fmt.count(tokens)} tokens, {_gib(headroom)} headroom"]
    if seen is not None:
        told.append(f"seen {fmt.count(seen.capacity_tokens)} tokens, {_gib(seen.headroom_gib)} after start-up")
    told.append(f"least under load {_gib(trial.headroom_min_gib)}")
    return _paragraph("; ".join(told), width, 2, "text")


def _gib(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.2f} GiB"


def _level(level: LevelResult, width: int) -> list[Row]:
    first = Pen(width).put(f"  {level.concurrency:>5} clients  ", "strong")
    first.put(interval(level.completion_rate), "finished").put(" tok/s finished", "dim")
    first.put(
        f"  {fmt.rate(level.responses_per_s)} resp/s  decoding {fmt.rate(level.gen_tokens_per_s)} tok/s",
        "text",
    )
    first.put(f"  ended: {level.end.value}{'' if level.steady else ', never steady'}", "dim")
    second = Pen(width).gap(16)
    second.put(f"running {_one(level.running_requests)}, waiting {_one(level.queued_requests)}, ", "dim")
    second.put(f"KV {fmt.share(level.token_usage_share)}, {fmt.count(level.tokens_in_flight_each)} each, ", "dim")
    second.put(f"retracted {fmt.share(level.retracted_share)}, hits {fmt.share(level.cache_hit_share)}", "dim")
    third = Pen(width).gap(16)
    for name, told in (("TTFT", level.ttft_s), ("ITL", level.itl_s), ("E2E", level.e2e_s)):
        third.put(f"{name} {_percentiles(told)}   ", "dim")
    return [first.row(), second.row(), third.row()]


def _one(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.0f}"


def _percentiles(told: Percentiles | None) -> str:
    return fmt.UNKNOWN if told is None else f"p50 {fmt.seconds(told.p50)} p95 {fmt.seconds(told.p95)}"
