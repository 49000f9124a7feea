"""best-config.yaml, which SGLang loads as it is, and best-config.evidence.yaml with what it cannot hold."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from launcher.config import ServerConfig
from launcher.flags import to_yaml, words_beside_yaml
from launcher.redact import redact
from launcher.version import SglangBuild
from tuner.errors import NothingFeasible
from tuner.export.atomic import write_whole
from tuner.export.beside import note
from tuner.journal import StudyView, read_study
from tuner.journal.codec import encode, from_json_value
from tuner.journal.view import Incumbent
from tuner.progress.words import best_words, doubt_words, rate_words, setting_words
from tuner.study_file import Study, build_study
from tuner.trial import LevelResult, Purpose, TrialResult

EVIDENCE_VERSION = 1
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """A study's answer with all that is needed to start it."""

    view: StudyView
    study: Study
    build: SglangBuild
    best: Incumbent
    config: ServerConfig
    """With the safety margin: what is exported."""

    @property
    def words_beside(self) -> tuple[str, ...]:
        """Command-line words that the YAML cannot hold."""
        return words_beside_yaml(self.config, self.build)

    @property
    def level(self) -> LevelResult | None:
        """The level that the answer is named by: its best start's."""
        levels = () if self.trial is None else self.trial.levels
        return next((level for level in levels if level.concurrency == self.best.concurrency), None)

    @property
    def pooled(self) -> tuple[LevelResult, ...]:
        """The levels that the rate rests on, one of every start with the same setting."""
        return tuple(
            level
            for trial in self.view.trials
            if trial.proposal.setting == self.best.setting and trial.proposal.purpose is not Purpose.PROBE
            for level in trial.levels
            if level.concurrency == self.best.concurrency
        )

    @property
    def trial(self) -> TrialResult | None:
        return next((one for one in self.view.trials if one.trial_id == self.best.trial_id), None)


def read_answer(directory: Path) -> Answer:
    """The answer of a study as it stands. Raises NothingFeasible when nothing was measured."""
    view = read_study(directory)
    if view.incumbent is None or view.export_setting is None:
        raise NothingFeasible(f"study {view.study_id}: nothing was measured yet, so there is nothing to export")
    study = build_study(view.asked, view.study_id)
    build = from_json_value(SglangBuild, view.build)
    # Secrets stay out of every export; a pinned API key has to be given again where the answer is used.
    config = study.server_config(view.export_setting)
    public = {name: value for name, value in config.flags.items() if redact({name: value}) == {name: value}}
    return Answer(view, study, build, view.incumbent, replace(config, flags=public))


def write_best(answer: Answer, output: Path) -> None:
    """Write both files, each whole at every moment. Raises DiskFull."""
    write_whole(output, best_config(answer))
    write_whole(evidence_path(output), yaml.safe_dump(evidence(answer), sort_keys=False, allow_unicode=True))


def evidence_path(output: Path) -> Path:
    """`best-config.yaml` -> `best-config.evidence.yaml`, beside it."""
    return output.with_name(f"{output.stem}.evidence.yaml")


def best_config(answer: Answer) -> str:
    """Comments, then nothing but flags, flat and with dashes."""
    comments = [*header(answer), *note(answer.words_beside, answer.build)]
    return "".join(f"# {line}\n" for line in comments) + to_yaml(answer.config, answer.build)


def header(answer: Answer) -> list[str]:
    """What a person must know before using the flags."""
    view, best = answer.view, answer.best
    sentences = [
        f"kvtune {view.environment.kvtune_version}, study {view.study_id}, model {view.model_path},"
        f" SGLang {view.sglang_version or 'of unknown version'}"
    ]
    if view.simulated:
        sentences.append("SIMULATED: these figures are the simulated engine's; no GPU was measured.")
    sentences.append(
        f"Client concurrency {best.concurrency} (no SGLang flag: keep so many requests in flight)"
        f" completed {rate_words(best.completion_rate)}, 95% interval{_measured(answer.pooled)}."
    )
    sentences += [*_margin(answer), *_doubt(answer)]
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(sentence, _WIDTH, break_on_hyphens=False, break_long_words=False)
    ]


def evidence(answer: Answer) -> dict[str, object]:
    """For machines: units in the names, null for what is not known."""
    view, best = answer.view, answer.best
    return {
        "schema_version": EVIDENCE_VERSION,
        "simulated": view.simulated,
        "study_id": view.study_id,
        "model_path": view.model_path,
        "client_concurrency": best.concurrency,
        "completion_rate_tokens_per_s": asdict(best.completion_rate),
        "clear_winner": view.clear,
        "warning": doubt_words(best.completion_rate),
        "explanation": view.explanation,
        "exported": _plain(answer.view.export_setting),
        "command_line_beside_config": list(answer.words_beside),
        "measured": {
            "trial_id": best.trial_id,
            "setting": _plain(best.setting),
            "level": _plain(answer.level),
            "starts": len(answer.pooled),
            "measured_s": sum(level.measured_s for level in answer.pooled),
            "finished_requests": sum(level.finished_requests for level in answer.pooled),
        },
        "runner_up": _plain(view.runner_up),
        "memory": _plain(answer.trial.timeline.memory if answer.trial and answer.trial.timeline else None),
        "launch": {
            "command": list(view.environment.command),
            "env": redact(answer.study.env),
            "workload": answer.study.workload,
            "slo": answer.study.slo.model_dump(),
        },
        "environment": _plain(view.environment),
        "budget_s": view.budget_s,
        "spent_s": round(view.spent_s, 1),
        "trials": len(view.trials),
        "failed_starts": [
            {"setting": setting_words(trial.proposal.setting), "why": redact(trial.failure.sentence)}
            for trial in view.trials
            if trial.failure is not None
        ],
    }


def _measured(levels: Sequence[LevelResult]) -> str:
    """Of all starts together, as the rate is."""
    if not levels:
        return ""
    seconds, finished = sum(level.measured_s for level in levels), sum(level.finished_requests for level in levels)
    starts = f" of {len(levels)} starts" if len(levels) > 1 else ""
    usages = [level.token_usage_share for level in levels if level.token_usage_share is not None]
    usage = f", token usage {max(usages):.2f}" if usages else ""
    return f", measured over {seconds:.0f} s{starts} with {finished} finished responses{usage}"


def _margin(answer: Answer) -> list[str]:
    """How far the exported fraction lies below the measured one, and what is free."""
    exported, measured = answer.config.mem_fraction_static, answer.best.setting.mem_fraction_static
    free = None if answer.trial is None else answer.trial.headroom_min_gib
    seen = "" if free is None else f"; the poorest GPU had {free:.1f} GiB free at least while it was measured"
    if exported is None or measured is None:
        return []
    if exported < measured:
        return [f"Safety margin: mem-fraction-static {measured:g} was measured and lowered to {exported:g}{seen}."]
    return [f"Safety margin: mem-fraction-static {exported:g} needed no lowering{seen}."]


def _doubt(answer: Answer) -> list[str]:
    view = answer.view
    doubt = doubt_words(answer.best.completion_rate) or (answer.level and answer.level.doubt)
    sentences = [] if doubt is None else [f"WARNING: {doubt}."]
    if view.clear is False and view.runner_up is not None:
        sentences.append(f"No clear winner: {best_words(view.runner_up)} cannot be told apart from it.")
    return sentences


def _plain(value: object) -> object:
    """JSON values: a dataclass without tuples and enums, which YAML would write as tags."""
    return json.loads(encode(value))
