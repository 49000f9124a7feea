"""The answer as files: whole at every moment, without secrets, in forms that their readers parse."""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from launcher.version import SglangBuild
from tuner.daemon.publish import Publisher
from tuner.errors import DiskFull, NothingFeasible, StudyFileError
from tuner.export import FORMATS, evidence_path, read_answer, render, warning, write_best
from tuner.export.atomic import write_whole
from tuner.export.best import evidence
from tuner.journal import read_study
from tuner.journal.view import Environment, Incumbent
from tuner.trial import Interval, Proposal, Purpose, Setting, TrialState

SECRET = "s3cr3t-value-that-must-not-leave"


@pytest.fixture
def answered(study, some_level):
    """A study with one measured trial, secrets in its flags and environment, and a lowered fraction."""
    journal = study.journal
    asked = {
        "model": "/models/my model",
        "command": ["/opt/my env/bin/python", "-m", "sglang.launch_server"],
        "flags": {"tp-size": 8, "api-key": SECRET, "trust-remote-code": True, "served-model-name": "50% $HOME"},
        "env": {"HF_TOKEN": SECRET, "NCCL_DEBUG": "WARN", "ODD": 'a "b" $c %d'},
        "output": str(study.directory / "best-config.yaml"),
    }
    measured, exported = Setting(0.9, "bfloat16", 20), Setting(0.885, "bfloat16", 20)
    best = Incumbent(1, measured, 16, Interval(600.0, 580.0, 620.0))
    journal.set_fact("study", asked)
    journal.set_fact("model_path", "/models/my model")
    environment = Environment("0.1.0", "0.5.17", tuple(asked["command"]), gpu_names=("G",) * 8)
    journal.set_fact("environment", environment)
    journal.set_fact("build", SglangBuild("0.5.17"))
    trial_id = journal.begin_trial(Proposal(measured, (16,), Purpose.EXPLORE, "because", 800.0), 7_000.0)
    start_id = journal.begin_start(trial_id)
    journal.end_level(journal.begin_level(trial_id, start_id, 16), some_level)
    journal.end_trial(trial_id, TrialState.MEASURED, None)
    other = replace(best, setting=Setting(0.88, "bfloat16"), completion_rate=Interval(590.0, 560.0, 620.0))
    verdict = {"incumbent": best, "runner_up": other, "clear": False, "explanation": "they are close"}
    journal.set_fact("verdict", verdict)
    journal.set_fact("export_setting", exported)
    return read_answer(study.directory)


def test_the_yaml_holds_flags_alone_flat_with_dashes_and_no_nulls(answered):
    flags = yaml.safe_load(render(answered, "sglang"))
    assert flags["mem-fraction-static"] == 0.885
    assert flags["kv-cache-dtype"] == "bfloat16"
    assert flags["hicache-size"] == 20
    assert flags["tp-size"] == 8
    assert flags["model-path"] == "/models/my model"
    assert not any("_" in name or value is None or isinstance(value, dict) for name, value in flags.items())
    assert "concurrency" not in flags


def test_the_header_says_concurrency_interval_margin_and_doubt(answered):
    comments = [line for line in render(answered, "sglang").splitlines() if line.startswith("#")]
    text = " ".join(line[2:] for line in comments)
    assert "Client concurrency 16" in text
    assert "600 tokens/s (580 to 620), 95% interval" in text
    assert "0.9 was measured and lowered to 0.885" in text
    assert "4.2 GiB free" in text
    assert "No clear winner" in text
    assert "SIMULATED" not in text


def test_seconds_and_responses_are_those_of_every_start_that_the_rate_is_pooled_from(answered):
    again = replace(answered.view.trials[0], trial_id=2)
    other = replace(again, trial_id=3, proposal=replace(again.proposal, setting=Setting(0.8, "bfloat16")))
    probe = replace(again, trial_id=4, proposal=replace(again.proposal, purpose=Purpose.PROBE))
    pooled = replace(answered, view=replace(answered.view, trials=(*answered.view.trials, again, other, probe)))
    text = " ".join(line[2:] for line in render(pooled, "sglang").splitlines() if line.startswith("#"))
    assert "measured over 240 s of 2 starts with 200 finished responses" in text
    told = evidence(pooled)["measured"]
    assert (told["starts"], told["measured_s"], told["finished_requests"]) == (2, 240.0, 200)
    assert "measured over 120 s with 100 finished responses" in render(answered, "sglang").replace("\n# ", " ")


def test_what_the_yaml_cannot_hold_is_named_and_in_every_other_form(answered):
    build = SglangBuild(
        "0.5.17",
        frozenset({"model-path", "mem-fraction-static", "kv-cache-dtype", "hicache-size", "lora-paths"})
        | {"enable-hierarchical-cache"},
        switches=frozenset({"enable-hierarchical-cache"}),
        special={"lora-paths": ""},
    )
    config = replace(answered.config, flags={"lora-paths": ["sql=/loras/my sql"]})
    answer = replace(answered, build=build, config=config)
    text = render(answer, "sglang")
    assert "#     --lora-paths 'sql=/loras/my sql'\n" in text
    assert "0.5.17 refuses it in YAML; give it beside --config" in text
    assert "lora-paths" not in yaml.safe_load(text)
    assert evidence(answer)["command_line_beside_config"] == ["--lora-paths", "sql=/loras/my sql"]
    for form in FORMATS.keys() - {"sglang"}:
        assert "lora-paths" in render(answer, form)
        assert "NOT IN THIS FILE" not in render(answer, form)


def test_a_study_begins_with_a_sentence_when_its_answer_needs_more_than_the_file(answered):
    study = answered.study.model_copy(update={"flags": {"cuda-graph-max-bs": 64}})
    assert warning(study, SglangBuild("0.5.10")) is None
    sentence = warning(study, SglangBuild("0.5.17"))
    assert "SGLang 0.5.17 refuses --cuda-graph-max-bs-decode in YAML" in sentence
    assert "export --format command" in sentence


def test_simulated_numbers_say_so(answered):
    study = answered.study.model_copy(update={"engine": "simulated"})
    simulated = replace(answered, study=study, view=replace(answered.view, simulated=True))
    for form in ("sglang", "command", "systemd"):
        assert "SIMULATED" in render(simulated, form)
    for form in ("compose", "k8s"):
        with pytest.raises(StudyFileError, match="no simulated engine; take sglang, command or systemd"):
            render(simulated, form)


def test_a_rate_that_is_hardly_known_is_never_called_clear(answered):
    best = replace(answered.best, completion_rate=Interval(188.0, 25.0, 1_389.0))
    vague = replace(answered, best=best, view=replace(answered.view, incumbent=best))
    text = " ".join(line[2:] for line in render(vague, "sglang").splitlines() if line.startswith("#"))
    assert "WARNING: this rate is hardly known (±363%)" in text
    assert "±363%" in str(evidence(vague)["warning"])
    assert evidence(answered)["warning"] is None
    assert "WARNING" not in render(answered, "sglang")


@pytest.mark.parametrize("form", FORMATS)
def test_no_secret_leaves(answered, form):
    assert SECRET not in render(answered, form)


def test_an_unknown_format_is_refused(answered):
    with pytest.raises(StudyFileError, match="toml"):
        render(answered, "toml")


def test_the_evidence_is_plain_yaml_with_units_and_no_secret(answered, tmp_path):
    output = tmp_path / "out" / "best-config.yaml"
    write_best(answered, output)
    assert yaml.safe_load(output.read_text())["mem-fraction-static"] == 0.885
    assert evidence_path(output).name == "best-config.evidence.yaml"
    text = evidence_path(output).read_text()
    assert SECRET not in text
    evidence = yaml.safe_load(text)
    assert evidence["schema_version"] == 1
    assert evidence["client_concurrency"] == 16
    assert evidence["completion_rate_tokens_per_s"] == {"value": 600.0, "low": 580.0, "high": 620.0}
    assert evidence["measured"]["level"]["measured_s"] == 120.0
    assert evidence["exported"]["mem_fraction_static"] == 0.885
    assert evidence["clear_winner"] is False
    assert evidence["launch"]["env"]["NCCL_DEBUG"] == "WARN"


def test_a_shell_command_is_one_and_gives_the_same_words(answered):
    lines = [line for line in render(answered, "command").splitlines() if not line.startswith("#")]
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines))
    assert words[:2] == ["NCCL_DEBUG=WARN", 'ODD=a "b" $c %d']
    assert words[2:5] == ["/opt/my env/bin/python", "-m", "sglang.launch_server"]
    assert words[words.index("--model-path") + 1] == "/models/my model"
    assert "--trust-remote-code" in words


def test_compose_and_k8s_are_yaml_with_the_flags_the_gpus_and_named_secrets(answered):
    service = yaml.safe_load(render(answered, "compose"))["services"]["sglang"]
    assert service["image"].endswith(":v0.5.17")
    assert "--mem-fraction-static" in service["command"]
    assert "HF_TOKEN" in service["environment"]
    deployment = yaml.safe_load(render(answered, "k8s"))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    token = next(one for one in container["env"] if one["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["key"] == "HF_TOKEN"
    assert service["volumes"] == ["/models/my model:/models/my model:ro"]
    assert {"name": "model", "mountPath": "/models/my model", "readOnly": True} in container["volumeMounts"]
    assert "&id" not in render(answered, "k8s")


def test_systemd_words_are_quoted_and_its_own_marks_escaped(answered):
    unit = render(answered, "systemd")
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert '"/opt/my env/bin/python"' in start
    assert '"50%% $$HOME"' in start
    assert 'Environment="ODD=a \\"b\\" $c %%d"' in unit


def test_nothing_measured_is_nothing_to_export(study):
    with pytest.raises(NothingFeasible, match="nothing was measured"):
        read_answer(study.directory)


def test_the_journal_knows_whether_the_answer_is_in_its_file(answered, study, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.daemon.publish.boundary", lambda *_: [])
    verdict = SimpleNamespace(incumbent=answered.best, runner_up=None, clear=True, explanation="so it is")
    searcher = SimpleNamespace(verdict=lambda _: verdict, export_setting=lambda _: Setting(0.885, "bfloat16", 20))
    scribe = SimpleNamespace(screen=SimpleNamespace(best=lambda _: None))
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFull):
        Publisher(study.journal, searcher, scribe, tmp_path / "file" / "best.yaml")()
    assert "cannot be written" in read_study(study.directory).unwritten
    Publisher(study.journal, searcher, scribe, tmp_path / "best.yaml")()
    assert read_study(study.directory).unwritten is None
    assert (tmp_path / "best.yaml").is_file()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "best-config.yaml"
    write_whole(path, "old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(DiskFull, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["best-config.yaml"]


def test_a_directory_that_takes_no_file_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskFull, match="cannot be written"):
        write_whole(tmp_path / "file" / "best-config.yaml", "x")
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)
