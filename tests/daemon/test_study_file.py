"""The study file and durations: what is right is taken as it is, what is wrong is one sentence with the cure."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.simulated.presets import load_preset
from tuner.budget import Budget, closing_s, parse_duration, words
from tuner.errors import StudyFileError, WorkloadError
from tuner.study_file import Study, build_study, read_study_file
from tuner.trial import Setting
from tuner.workload import load_workload


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7_200), ("10m", 600), ("90s", 90), ("1h30m", 5_400), ("1.5h", 5_400), (" 1H 5M ", 3_900), ("1d", 86_400)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["2x", "", "h", "-1h", "2", "0s", "2h!", "1h-5m", "nan", "١h"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(StudyFileError, match="write it like 2h"):
        parse_duration(text)


@given(st.floats(0, 1e6))
def test_words_are_short_and_never_negative(seconds):
    assert len(words(seconds)) <= 14
    assert not words(seconds).startswith("-")


def test_a_budget_alone_is_a_study_on_the_simulated_engine():
    study = build_study({"budget": "2h"})
    assert study.simulated
    assert study.budget == 7_200.0
    assert study.clock_speed == 60.0


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "budget: 1h\n", "space: {concurrency: [1, 4]}\n"])
def test_a_file_that_forgets_the_model_is_never_simulated_unawares(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(StudyFileError, match="names no `model:`"):
        read_study_file(path)
    assert not read_study_file(path, {"model": "/models/x"}).simulated
    path.write_text(f"{text}\nengine: simulated\n")
    assert read_study_file(path).simulated


def test_what_the_command_line_says_wrongly_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("engine: simulated\nbudget: 1h\n")
    with pytest.raises(StudyFileError, match=r"^command line: budget: '2x'"):
        read_study_file(path, {"budget": "2x"})
    path.write_text("engine: simulated\nbudget: 2x\n")
    with pytest.raises(StudyFileError, match=r"study\.yaml: budget: '2x'"):
        read_study_file(path, {"max_trials": 1})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model: a: b\n", "line 1, column 9"),
        ("model: x\nspace: [1, 2\n", "line 3, column 1"),
        ("a: 1\n\tb: 2", "line 2"),
    ],
)
def test_what_is_no_yaml_is_one_sentence_with_its_line(tmp_path, text, place):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(StudyFileError) as error:
        read_study_file(path)
    assert f"study.yaml: is not YAML; {place}" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 120
    with pytest.raises(UsageError, match=place):
        load_preset(path)
    with pytest.raises(WorkloadError, match=place):
        load_workload(str(path), seed=0)


def test_a_model_alone_is_a_study_of_a_real_server():
    study = build_study({"model": "/models/x"})
    assert not study.simulated
    assert study.clock_speed == 1.0
    assert study.command == ("python", "-m", "sglang.launch_server")


FULL = """
model: /models/kimi
command: /opt/sglang/bin/python -m sglang.launch_server
flags: {tp-size: 8, trust-remote-code: true, cuda-graph-bs: [1, 2]}
env: {NCCL_DEBUG: WARN}
space:
  mem-fraction-static: [0.85, 0.93]
  kv-cache-dtype: [bfloat16, fp8_e4m3]
  hicache-size: [off, 20, 60]
  concurrency: [16, 192]
  chunked-prefill-size: [8192, 16384]
workload: random:in=1000,out=500
slo: {ttft_p95_s: 5}
gpus: [0, 1]
budget: 8h
max_trials: 12
until_gain_below: 0.01
"""


def test_a_whole_file_becomes_a_space_a_launch_and_survives_the_journal(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(FULL)
    study = read_study_file(path)
    space = study.space.build()
    assert space.hicache_sizes_gb == (0, 20, 60)
    assert space.further == {"chunked-prefill-size": (8192, 16384)}
    assert study.server_env() == {"NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "0,1"}
    config = study.server_config(Setting(0.88, "bfloat16", 20, {"chunked-prefill-size": 8192}))
    assert config.tp_size == 8
    assert config.flags["chunked-prefill-size"] == 8192
    assert config.flags["trust-remote-code"] is True
    again = build_study(study.model_dump(mode="json", by_alias=True))
    assert again == study
    assert again.space.build() == space


def test_the_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(FULL)
    assert read_study_file(path, {"budget": "1h"}).budget == 3_600.0


WRONG = [
    ("budgt: 2h", "budgt: unknown key; did you mean 'budget'?"),
    ("max-trials: 3", "did you mean 'max_trials'?"),
    ("slo: {ttft_p95: 3}", "slo.ttft_p95: unknown key; did you mean 'ttft_p95_s'?"),
    ("budget: 2x", "budget: '2x' is not a duration"),
    ("space: {mem_fraction_static: 0.9}", "did you mean 'mem-fraction-static'?"),
    ("space: {mem-fraction-statc: 0.9}", "did you mean 'mem-fraction-static'?"),
    ("space: {max_total_tokens: [1]}", "use max-total-tokens"),
    ("space: {mem-fraction-static: [0.9, 0.8]}", "the lower first"),
    ("space: {kv-cache-dtype: [auto]}", "auto"),
    ("model: m\nflags: {tp_size: 8}", "flags: tp_size: SGLang's flags are written with dashes inside; use tp-size"),
    ("model: m\nflags: {mem-fraction-static: 0.9}", "put its value under `space:` instead"),
    ("model: m\nclock_speed: 60", "only the simulated engine"),
    ("command: python -m sglang.launch_server", "model: is missing"),
    ("max_trials: 0", "max_trials: 0: must be 1 or more"),
    ("seed: 1.5", "seed: 1.5: must be a whole number"),
    ("output: 3", "output: 3: must be text"),
    ("clock_speed: fast", "clock_speed: 'fast': must be a number"),
    ("clock_speed: -1", "clock_speed: -1: must be above 0"),
    ("engine: vllm", "engine: 'vllm': must be 'real' or 'simulated'"),
    ("gpus: 3", "gpus: 3: must be a list"),
    ("gpus: [-1]", "gpus.0: -1: must be 0 or more"),
    ("gpus: []", "gpus: []: must name 1 at least"),
    ("workload: 3", "workload: 3: must be a spec such as random:in=1000,out=500, the path of a file, or a list"),
    ("warm_start: [1]", "warm_start: [1]: must be true, false or the name of a study"),
    ("space: 3", "space: 3: must be a mapping of keys; leave it out for the defaults"),
    ("space: {concurrency: [2]}", "space.concurrency: (2,): must be a whole number or [low, high]"),
    ("model: m\nflags: {tp-size: x}", "flags: tp-size: 'x': must be a whole number above 0"),
    ("model: m\nflags: {dp: 0}", "flags: dp: 0: must be a whole number above 0"),
    ("model: m\nflags: {tp-size: 8, tp: 4}", "flags: tp: is another name of tp-size; keep one of them"),
    ("model: m\nflags: {tp-size: }", "flags.tp-size: null: must be a value: text, a number, true or false, or a list"),
    ("seed: -1", "seed: -1: must be 0 or more"),
    ("space: {hicache-size: [on]}", "hicache-size: on: is no size; write GB of host memory per rank, or off"),
    ("space: {concurrency: [16, 100000000]}", "two whole numbers from 1 to 16384"),
    ("model: ${KVTUNE_NOT_SET}", "the environment has no KVTUNE_NOT_SET"),
    ("- a list", "must be a mapping"),
    ("a: [", "is not YAML"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_what_is_wrong_is_said_with_file_key_and_cure(tmp_path, text, sentence):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(StudyFileError) as error:
        read_study_file(path)
    assert sentence in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(StudyFileError, match="cannot be read"):
        read_study_file(tmp_path / "study.yaml")


scalars = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_no_yaml_whatever_ends_in_a_traceback(value):
    raw = {"space": value, "budget": value} if not isinstance(value, dict) else value
    with contextlib.suppress(StudyFileError):
        build_study(raw)


def test_a_number_from_the_environment_is_a_number(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKS", "8")
    monkeypatch.setenv("NAME", "8-bit")
    path = tmp_path / "study.yaml"
    path.write_text("model: /models/${NAME}\nflags: {tp-size: '${RANKS}', revision: '${NAME}'}\n")
    study = read_study_file(path)
    assert (study.tp_size, study.flags["revision"], study.model) == (8, "8-bit", "/models/8-bit")


def test_the_examples_are_studies(monkeypatch):
    from pathlib import Path

    monkeypatch.setenv("KVTUNE_TINY_LLAMA", "/m")
    monkeypatch.setenv("KVTUNE_SGLANG_PYTHON", "/python")
    examples = Path(__file__).parents[2] / "examples"
    for path in sorted(examples.glob("*.yaml")):
        if "engine:" in path.read_text() or "command:" in path.read_text():
            assert isinstance(read_study_file(path), Study), path
            yaml.safe_load(path.read_text())


def test_a_budget_counts_what_earlier_runs_spent_and_not_what_the_user_paused(study):
    clock = study.clock
    budget = Budget(7_200.0, 1_000.0, clock, clock.now_s())
    clock._now_s += 500.0
    budget.paused_s += 200.0
    assert budget.spent_s == 1_300.0
    assert budget.remaining_s == 5_900.0
    assert budget.level_s() == 600.0
    assert budget.level_s(needed_s=900.0) == 900.0
    assert budget.level_s(needed_s=90.0) == 600.0
    assert Budget(120.0, 100.0, clock, clock.now_s()).level_s() == 8.0
    assert Budget(120.0, 100.0, clock, clock.now_s()).level_s(needed_s=30.0) == 8.0


def test_a_faster_clock_keeps_the_wall_time_that_it_cannot_shorten():
    assert closing_s(7_200.0, 1.0) == closing_s(7_200.0) == 65.0
    assert closing_s(7_200.0, 61.0) == 125.0
    assert closing_s(600.0, 61.0) == 60.0
    assert closing_s(7_200.0, float("inf")) == 65.0


def test_the_beginning_of_a_knob_is_not_a_flag_of_its_own() -> None:
    """argparse would take `--mem-fraction` for `--mem-fraction-static`, beside the searched one."""
    with pytest.raises(StudyFileError, match="did you mean 'mem-fraction-static'"):
        build_study({"space": {"mem-fraction": [0.8, 0.9]}})


@pytest.mark.parametrize(
    ("start", "parts"),
    [
        ({"mem-fraction-static": 0.5}, ("mem-fraction-static: 0.5", "from 0.7 to 0.95")),
        ({"kv-cache-dtype": "fp8_e4m3"}, ("kv-cache-dtype: fp8_e4m3", "(bfloat16)")),
        ({"hicache-size": 7}, ("hicache-size: 7", "(0, 20)")),
        ({"chunked-prefill-size": 1}, ("chunked-prefill-size: 1", "(8192, 16384)")),
    ],
)
def test_a_start_outside_of_the_space_is_refused_and_never_replaced(start, parts):
    space = {"hicache-size": ["off", 20], "chunked-prefill-size": [8192, 16384]}
    with pytest.raises(StudyFileError) as error:
        build_study({"space": space, "start_from": start}, "study.yaml")
    for part in ("study.yaml: start_from: ", *parts):
        assert part in str(error.value)


def test_a_start_names_only_what_it_names_also_after_the_journal():
    told = {"space": {"kv-cache-dtype": "fp8_e4m3"}, "start_from": {"mem-fraction-static": 0.8}}
    study = build_study(told)
    assert study.start_from.build() == Setting(0.8, "bfloat16")
    assert build_study(study.model_dump(mode="json", by_alias=True)) == study


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"space": {"mem-fraction-static": "x"}}, "space.mem-fraction-static: 'x': must be a number or [low, high]"),
        ({"space": {"mem-fraction-static": [0.5]}}, "must be a number or [low, high]"),
        ({"space": {"concurrency": [1, 2, 3]}}, "space.concurrency: (1, 2, 3): must be a whole number or [low, high]"),
        ({"space": None}, "space: null: must be a mapping of keys"),
        ({"flags": None}, "flags: null: must be a mapping of keys"),
        ({"gpus": "0"}, "gpus: '0': must be a list"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_yaml(told, sentence):
    with pytest.raises(StudyFileError) as error:
        build_study(told)
    assert sentence in str(error.value)
