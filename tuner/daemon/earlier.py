"""What earlier studies on the same model, GPUs and build teach a new one, written into its own journal.

Memory and start times are taken from every study whose pinned flags are the same; rates, and the memory that load
took, only where workload and SLOs are the same too. What was taken over is kept in the new journal: a resumed study
proposes the same, whatever has become of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config import FlagValue
from launcher.failure import Stage
from tuner.errors import JournalError, StudyFileError
from tuner.journal import Journal, StudyView, find_studies, find_study, read_study
from tuner.journal.codec import from_json_value
from tuner.journal.home import is_running
from tuner.journal.view import Environment
from tuner.search.knowledge import family_of
from tuner.space import Space
from tuner.study_file import Study, build_study
from tuner.trial import Purpose, Setting, TrialResult, TrialState

MOST_TRIALS = 30
"""The newest are taken: a proposal must not take longer because there were many studies."""
_WITHOUT_EFFECT = frozenset(
    {"host", "port", "api-key", "log-level", "log-level-http", "enable-metrics", "served-model-name"}
)
_UNDER_LOAD = frozenset({Stage.WARM_UP, Stage.FIRST_PREFILL, Stage.UNDER_LOAD})


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one earlier study gives."""

    study_id: str
    trials: tuple[TrialResult, ...]
    with_rates: bool

    @property
    def sentence(self) -> str:
        what = "memory, start times and (as weaker evidence) rates" if self.with_rates else "memory and start times"
        why = "" if self.with_rates else ", since its workload or SLOs differ"
        return f"{len(self.trials)} start(s) of study {self.study_id} are taken over: {what}{why}"


def earlier_lessons(journal: Journal, study: Study) -> tuple[Lesson, ...]:
    """What this study goes on from: as its journal says, or found now and written there.

    The journal must hold the study's environment already. Raises StudyFileError, with what differs, when the study
    that the user named does not fit.
    """
    known = journal.fact("earlier")
    if known is not None:
        return from_json_value(tuple[Lesson, ...], known)
    lessons = tuple(_newest(_found(journal, study)))
    journal.set_fact("earlier", lessons)
    return lessons


def _found(journal: Journal, study: Study) -> Iterator[Lesson]:
    """Lessons of the named study, or of every one that fits, the newest first."""
    if study.warm_start is False:
        return
    if isinstance(study.warm_start, str):
        yield _named(journal, study, study.warm_start)
        return
    for directory in reversed(find_studies()):
        if directory != journal.directory and not is_running(directory):
            lesson = _lesson(journal, study, directory)
            if isinstance(lesson, Lesson):
                yield lesson


def _named(journal: Journal, study: Study, name: str) -> Lesson:
    lesson = _lesson(journal, study, find_study(name))
    if isinstance(lesson, str):
        raise StudyFileError(f"warm_start: study {name} teaches this one nothing: {lesson}")
    return lesson


def _lesson(journal: Journal, study: Study, directory: Path) -> Lesson | str:
    """What the study there teaches, or why nothing."""
    try:
        view = read_study(directory)
        other = build_study(view.asked, directory.name)
    except (JournalError, StudyFileError) as error:
        return str(error)
    here = from_json_value(Environment, journal.fact("environment"))
    differs = _difference(here, view.environment) or _other_model(study, other)
    if differs is not None:
        return differs
    with_rates = here.workload_fingerprint == view.environment.workload_fingerprint and study.slo == other.slo
    usable = _translated(view, other, study)
    trials = tuple(usable if with_rates else map(_without_load, usable))
    return Lesson(directory.name, trials, with_rates) if trials else "no start of it tells of this study's space"


def _difference(here: Environment, there: Environment) -> str | None:
    for what, mine, other in (
        ("SGLang", here.sglang_version, there.sglang_version),
        ("model", here.model_fingerprint, there.model_fingerprint),
        ("GPUs", here.gpu_names, there.gpu_names),
        ("GPU memory", here.gpu_memory_bytes, there.gpu_memory_bytes),
        ("engine", _engine(here), _engine(there)),
    ):
        if mine != other:
            return f"it ran with {what} {_shown(other)}, this one with {_shown(mine)}"
    return None


def _engine(environment: Environment) -> str:
    return "simulated" if environment.simulated else "real"


def _other_model(study: Study, other: Study) -> str | None:
    """Names have no fingerprint: there the name must be the same. The environment may change what a rank takes."""
    if study.model_path != other.model_path and (study.simulated or not Path(study.model_path).exists()):
        return f"its model is {other.model_path}"
    return "its `env` is another" if dict(study.env) != dict(other.env) else None


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value or "none")


def _translated(view: StudyView, other: Study, study: Study) -> Iterator[TrialResult]:
    """The trials that tell of settings of this study's space, in its terms: what was pinned there may be searched here.

    Probes are left out, since whether they may be trusted is each study's own question.
    """
    space = study.space.build()
    families = {family_of(family) for family in space.families()}
    for trial in view.trials:
        setting = _in_terms_of(space, study, {**other.flags, **trial.proposal.setting.flags}, trial.proposal.setting)
        if setting is not None and family_of(setting) in families and _tells(trial):
            yield replace(trial, proposal=replace(trial.proposal, setting=setting))


def _in_terms_of(space: Space, study: Study, launched: Mapping[str, FlagValue], setting: Setting) -> Setting | None:
    """None where a flag had a value that this study neither searches nor pins."""
    pinned = {name: value for name, value in launched.items() if name not in space.further}
    if _effective(pinned) != _effective(study.flags):
        return None
    return replace(setting, flags={name: launched[name] for name in space.further if name in launched})


def _effective(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    return {name: value for name, value in flags.items() if name not in _WITHOUT_EFFECT}


def _tells(trial: TrialResult) -> bool:
    taught = trial.failure.teaches if trial.failure is not None else trial.state is TrialState.MEASURED
    return taught and trial.proposal.purpose is not Purpose.PROBE


def _without_load(trial: TrialResult) -> TrialResult:
    """Other prompts have another rate and another worst step; only what the start itself showed is left."""
    died_of_load = trial.failure is not None and trial.failure.stage in _UNDER_LOAD
    return replace(trial, levels=(), headroom_min_gib=None, failure=None if died_of_load else trial.failure)


def _newest(lessons: Iterable[Lesson]) -> Iterator[Lesson]:
    left = MOST_TRIALS
    for lesson in lessons:
        trials = lesson.trials[-left:]
        left -= len(trials)
        yield replace(lesson, trials=trials)
        if left == 0:
            return
