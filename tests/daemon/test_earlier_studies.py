"""What a study takes over from earlier ones: what fits, what does not, and that it stays the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.failure import Failure
from launcher.timeline import MemorySeen, Timeline
from tuner.daemon.earlier import earlier_lessons
from tuner.errors import StudyFileError
from tuner.journal import Journal, find_studies, read_study
from tuner.journal.home import home
from tuner.journal.view import Environment
from tuner.study_file import Study, build_study
from tuner.trial import LevelResult, Minutes, Proposal, Purpose, Setting, TrialState

ROOT = Path(__file__).parents[2]
HERE = Environment(
    sglang_version="0.5.17",
    model_fingerprint="abc",
    workload_fingerprint="w",
    gpu_names=("H200",),
    gpu_memory_bytes=(150 * 10**9,),
)
ASKED: dict[str, Any] = {"model": "owner/m", "space": {"mem-fraction-static": [0.8, 0.95]}, "flags": {"tp-size": 1}}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path / "home"))


def begun(name: str, asked: dict[str, Any] = ASKED, environment: Environment = HERE) -> Journal:
    directory = home() / "studies" / name
    directory.mkdir(parents=True)
    told = build_study(asked).model_dump(mode="json", by_alias=True)
    return Journal.create(directory, {"study": told, "environment": environment, "model_path": "owner/m", "token": "t"})


def ended(name: str, level: LevelResult, asked: dict[str, Any] = ASKED, **differing: Any) -> None:
    """A study of one start that was measured."""
    flags = differing.pop("flags", {})
    purpose = differing.pop("purpose", Purpose.FIRST)
    journal = begun(name, asked, replace(HERE, **differing))
    journal.begin_run(_nobody())
    trial = journal.begin_trial(Proposal(Setting(0.88, "bfloat16", 0, flags), (16,), purpose, "", 600.0), 7200.0)
    start = journal.begin_start(trial)
    memory = MemorySeen(before_weights_gib=139.1, weights_gib=61.0, capacity_tokens=234_288, headroom_gib=17.5)
    journal.end_start(start, Timeline(memory=memory, ready_s=60.0), 5.0, 60.0)
    journal.end_level(journal.begin_level(trial, start, 16), level)
    journal.end_stop(start, 5.0)
    journal.end_trial(trial, TrialState.MEASURED, None)
    journal.close()


def _nobody() -> Any:
    from launcher.process import ProcessId

    return ProcessId(2**22 - 1, 0.5)


def asked_study(**told: Any) -> Study:
    return build_study({**ASKED, **told})


def test_the_same_box_and_workload_teach_memory_and_rates(some_level: LevelResult) -> None:
    ended("old", some_level)
    (lesson,) = earlier_lessons(begun("new"), asked_study())
    assert lesson.study_id == "old"
    assert lesson.with_rates
    assert lesson.trials[0].levels == (some_level,)
    assert lesson.trials[0].minutes == Minutes(5.0, 60.0, some_level.spent_s, 5.0)
    assert "rates" in lesson.sentence


def test_what_was_taken_over_outlives_the_earlier_study(some_level: LevelResult) -> None:
    ended("old", some_level)
    journal = begun("new")
    first = earlier_lessons(journal, asked_study())
    shutil.rmtree(home() / "studies" / "old")
    ended("younger", some_level)
    assert earlier_lessons(journal, asked_study()) == first


def test_another_workload_teaches_memory_alone(some_level: LevelResult) -> None:
    ended("old", some_level, workload_fingerprint="another")
    (lesson,) = earlier_lessons(begun("new"), asked_study())
    assert lesson.trials[0].levels == ()
    assert lesson.trials[0].headroom_min_gib is None
    assert "since its workload or SLOs differ" in lesson.sentence


def test_a_death_of_another_load_is_no_evidence(some_level: LevelResult, oom: Failure) -> None:
    ended("old", some_level, workload_fingerprint="another")
    journal = Journal(home() / "studies" / "old")
    trial = journal.begin_trial(Proposal(Setting(0.93, "bfloat16"), (16,), Purpose.EXPLORE, "", 600.0), 5000.0)
    start = journal.begin_start(trial)
    journal.fail_start(start, oom)
    journal.end_trial(trial, TrialState.FAILED, oom)
    journal.close()
    (lesson,) = earlier_lessons(begun("new"), asked_study())
    assert [one.failure for one in lesson.trials] == [None, None]


@pytest.mark.parametrize(
    ("differing", "words"),
    [
        ({"sglang_version": "0.5.18"}, "SGLang 0.5.18"),
        ({"model_fingerprint": "other"}, "model other"),
        ({"gpu_names": ("H100",)}, "GPUs H100"),
        ({"gpu_memory_bytes": (80 * 10**9,)}, "GPU memory 80000000000"),
        ({"simulated": True}, "engine simulated"),
        ({"asked": {**ASKED, "model": "owner/other"}}, "its model is owner/other"),
        ({"asked": {**ASKED, "env": {"A": "1"}}}, "`env` is another"),
        ({"asked": {**ASKED, "flags": {"tp-size": 1, "attention-backend": "fa3"}}}, "this study's space"),
        ({"purpose": Purpose.PROBE}, "this study's space"),
    ],
)
def test_what_does_not_fit_is_left_alone_and_refused_by_name(
    some_level: LevelResult, differing: dict[str, Any], words: str
) -> None:
    ended("old", some_level, **differing)
    journal = begun("new")
    with pytest.raises(StudyFileError, match=words):
        earlier_lessons(journal, asked_study(warm_start="old"))
    assert earlier_lessons(journal, asked_study()) == ()


def test_a_flag_pinned_there_may_be_searched_here(some_level: LevelResult) -> None:
    ended("old", some_level, {**ASKED, "flags": {"tp-size": 1, "chunked-prefill-size": 8192, "port": 31_000}})
    here = {**ASKED["space"], "chunked-prefill-size": [4096, 8192]}
    (lesson,) = earlier_lessons(begun("new"), asked_study(space=here))
    assert lesson.trials[0].proposal.setting.flags == {"chunked-prefill-size": 8192}


def test_nothing_is_taken_over_when_told_so(some_level: LevelResult) -> None:
    ended("old", some_level)
    assert earlier_lessons(begun("new"), asked_study(warm_start=False)) == ()


def test_a_second_study_on_the_simulated_engine_begins_where_the_first_ended(tmp_path: Path) -> None:
    asked = {
        "engine": "simulated",
        "preset": str(ROOT / "bench" / "chaos" / "small-box.yaml"),
        "clock_speed": 150,
        "sglang_version": "0.5.17",
        "space": {"mem-fraction-static": 0.7, "concurrency": [4, 16]},
        "workload": "random:in=100,out=100,cv=0.3",
        "budget": "30m",
        "max_trials": 1,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(asked))

    def run(*arguments: str) -> str:
        words = [sys.executable, "-m", "tuner.cli", "--config", "study.yaml", "--log-json", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=True)
        return done.stdout

    run()
    shown = [json.loads(line) for line in run().splitlines() if line.startswith("{")]
    first, second = (read_study(path) for path in find_studies())
    assert first.trials[0].proposal.expected_rate is None
    assert second.trials[0].proposal.expected_rate == pytest.approx(
        max(level.completion_rate.value for level in first.trials[0].levels), rel=0.2
    )
    assert len(second.trials[0].levels) < len(first.trials[0].levels)
    (told,) = [one for one in second.decisions if one.kind == "earlier"]
    assert first.study_id in told.sentence
    assert any(told.sentence in str(line) for line in shown)
