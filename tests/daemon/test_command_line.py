"""kvtune-auto as a program: exit codes, one sentence per error, nothing left behind, quick help."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.cli import main
from tuner.journal import Journal
from tuner.journal.view import Environment, Incumbent
from tuner.trial import Interval, Setting

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def kvtune(tmp_path, monkeypatch, capsys):
    """Runs the program in this process, with a home and a working directory of its own."""
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["kvtune-auto", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return Done(int(end.value.code or 0), said.out, said.err)

    return run


def refused(done: Done, code: int, *parts: str) -> None:
    """One sentence on stderr, nothing on stdout, no traceback, the right code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for part in ("kvtune-auto: ", *parts):
        assert part in lines[0]


def test_an_unknown_key_names_file_key_and_the_nearest(kvtune, tmp_path):
    (tmp_path / "study.yaml").write_text("budgt: 2h\n")
    refused(kvtune("--config", "study.yaml"), 2, "study.yaml", "budgt", "did you mean 'budget'?")


def test_a_budget_that_is_none(kvtune):
    refused(kvtune("--budget", "2x"), 2, "budget", "'2x'", "2h")


def test_a_model_path_that_does_not_exist(kvtune):
    refused(kvtune("--budget", "2h", "--model", "/nowhere/model"), 2, "/nowhere/model")


def test_a_launch_command_that_does_not_exist(kvtune, tmp_path):
    (tmp_path / "study.yaml").write_text(f"model: {tmp_path}\ncommand: no-such-program -m sglang\n")
    refused(kvtune("--config", "study.yaml"), 2, "command", "no-such-program")


def test_a_pinned_port_that_is_in_use_is_the_machines_fault(kvtune, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "study.yaml").write_text(
            f"model: {tmp_path}\ncommand: {sys.executable}\nsglang_version: 0.5.17\nflags: {{port: {port}}}\n"
        )
        refused(kvtune("--config", "study.yaml"), 1, "port", str(port))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["--max-trials", "0"], "max-trials"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--workload", "random:in=1"], "out=NUMBER"),
        (["--resume", "nothing"], "there is no such study"),
        (["show"], "there is no such study"),
        (["stop"], "no study is running"),
        (["export", "--format", "toml"], "toml"),
        (["--then", "no-such-program x"], "--then: there is no program 'no-such-program'"),
        (["--then", "touch a; sleep 1"], "--then: 'touch a; sleep 1': is started without a shell"),
        (["--then", "ls>there"], "sh -c '...'"),
        (["--then", "no-such-program 'a; b' \"c | d\""], "there is no program"),
        (["--warm-start", "zzz"], "warm_start: study 'zzz': there is no such study"),
        (["--then", "true", "--serve-best"], "--serve-best"),
        (["--then", "'"], "--then"),
        (["--output", "nowhere/best.yaml"], "output"),
        (["--name-file", "nowhere/name"], "--name-file"),
        (["--budget", "1h", "list"], "--budget does not go with a subcommand"),
    ],
)
def test_bad_usage_is_one_sentence_and_leaves_no_study(kvtune, tmp_path, arguments, part):
    refused(kvtune(*arguments), 2, part)
    assert not list((tmp_path / "home").glob("studies/*"))


@pytest.mark.parametrize("flag", ["model-path: x", "model: x"])
def test_a_flag_that_cannot_be_pinned_is_refused_before_there_is_a_study(kvtune, tmp_path, flag):
    (tmp_path / "study.yaml").write_text(f"engine: simulated\nflags: {{{flag}}}\n")
    refused(kvtune("--config", "study.yaml"), 2, flag.partition(":")[0])
    assert not list((tmp_path / "home").glob("studies/*"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("flags: {tp-size: 16}", "study.yaml: flags: the server takes 16 GPUs"),
        ("flags: {tp: 16}", "study.yaml: flags: the server takes 16 GPUs"),
        ("flags: {dp-size: 2}", "study.yaml: flags: dp-size: the simulated engine has no data-parallel ranks"),
        ("flags: {port: 99999}", "study.yaml: flags: port: 99999: must be a whole number from 1 to 65535"),
        ("gpus: [9]", "study.yaml: gpus: 9: is not here; this machine shows GPUs 0 to 7"),
        ("workload: random:in=100000000,out=5", "study.yaml: workload: its longest request takes"),
    ],
)
def test_what_this_machine_cannot_serve_is_refused_before_there_is_a_study(kvtune, tmp_path, text, part):
    (tmp_path / "study.yaml").write_text(f"engine: simulated\n{text}\n")
    refused(kvtune("--config", "study.yaml"), 2, part)
    assert not list((tmp_path / "home").glob("studies/*"))


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (("--gpu-memory-gib", "nan"), "--gpu-memory-gib"),
        (("--gpu-memory-gib", "80", "--started-fraction", "0.9"), "name both"),
        (("--started-log", str(ROOT / "README.md"), "--started-fraction", "0.9"), "holds no start of SGLang"),
    ],
)
def test_a_plan_makes_no_table_of_what_says_nothing(kvtune, more, part):
    refused(kvtune("plan", "--model", str(ROOT / "bench/h200x8/models/llama70"), *more), 2, part)


def test_a_plan_says_which_gpus_it_is_for_and_makes_none_up(kvtune, monkeypatch):
    told = ("plan", "--model", str(ROOT / "bench/h200x8/models/llama70"), "--tp-size", "2")
    monkeypatch.setattr("tuner.cli.outcome._smallest_gpu_gib", lambda: None)
    refused(kvtune(*told), 2, "--gpu-memory-gib: is missing, and this box shows no GPU")
    planned = kvtune(*told, "--gpu-memory-gib", "139.8")
    assert planned.returncode == 0
    assert "computed for GPUs of 139.8 GiB, not measured" in planned.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "--help"], ["plan", "--help"]])
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['kvtune-auto', *{arguments!r}]\n"
        "try:\n    runpy.run_module('tuner.cli', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'skopt', 'sklearn', 'scipy', 'matplotlib', 'numpy', 'textual', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def finished(tmp_path):
    """A study directory with one answer, as a daemon would have left it."""
    directory = tmp_path / "home" / "studies" / "tiny-1"
    directory.mkdir(parents=True)
    setting = Setting(0.88, "bfloat16")
    best = Incumbent(1, setting, 16, Interval(600.0, 580.0, 620.0))
    study = {"budget": 600.0, "engine": "simulated", "flags": {"tp-size": 8}, "output": "best-config.yaml"}
    journal = Journal.create(directory, {"study": study, "model_path": "simulated/tiny", "token": "t"})
    journal.set_fact("environment", Environment(sglang_version="0.5.17", command=("python", "-m", "sglang")))
    journal.set_fact("build", {"version": "0.5.17"})
    journal.set_fact("verdict", {"incumbent": best, "runner_up": None, "clear": True, "explanation": "so it is"})
    journal.set_fact("export_setting", setting)
    journal.set_fact("done", "the budget is used up")
    journal.close()
    return directory


@pytest.mark.usefixtures("finished")
def test_list_show_status_and_log_read_a_study(kvtune):
    assert "tiny-1" in kvtune("list").stdout
    status = json.loads(kvtune("status", "tiny", "--json").stdout)
    assert status["schema_version"] == 1
    assert status["simulated"] is True
    assert status["state"] == "done"
    assert status["incumbent"]["completion_rate"]["value"] == 600.0
    shown = kvtune("show").stdout
    assert "600 tokens/s (580 to 620)" in shown
    assert "SIMULATED" in shown
    assert kvtune("log").returncode == 0
    assert "600 tokens/s" in kvtune("compare", "tiny-1", "tiny-1").stdout


def test_an_answer_that_could_not_be_written_is_not_claimed(kvtune, finished):
    assert "written to best-config.yaml" in kvtune("show").stdout
    journal = Journal(finished)
    journal.set_fact("unwritten", "/proc/x.yaml: cannot be written (No such file or directory)")
    journal.close()
    shown = kvtune("show").stdout
    assert "written to" not in shown
    assert "NOT WRITTEN: /proc/x.yaml: cannot be written" in shown
    assert "`kvtune-auto export tiny-1 --output FILE`" in shown


@pytest.mark.usefixtures("finished")
def test_export_and_report_come_from_the_journal(kvtune, tmp_path):
    text = kvtune("export", "tiny-1").stdout
    assert "mem-fraction-static: 0.88" in text
    assert "SIMULATED" in text
    assert kvtune("export", "tiny-1", "--format", "systemd", "--output", "unit").returncode == 0
    assert "ExecStart=" in (tmp_path / "unit").read_text()
    assert kvtune("report", "tiny-1").stdout.startswith("<!doctype html>")
    assert list(tmp_path.glob("*.html")) == []
    assert kvtune("report", "tiny-1", "--format", "markdown").stdout.startswith("# tiny-1")


@pytest.mark.usefixtures("finished")
def test_a_report_on_a_terminal_is_a_file(kvtune, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.cli.outcome.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    done = kvtune("report", "tiny-1")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "tiny-1.html").read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("command", ["export", "report"])
def test_a_file_that_cannot_be_written_is_wrong_usage(kvtune, tmp_path, command):
    refused(kvtune(command, "tiny-1", "--output", "nowhere/page"), 2, "--output", "nowhere/page")
    refused(kvtune(command, "tiny-1", "--output", str(tmp_path)), 2, "--output", str(tmp_path))


@pytest.mark.usefixtures("finished")
def test_a_finished_study_is_not_resumed_without_more_to_do(kvtune):
    refused(kvtune("--resume", "tiny-1"), 2, "is finished", "--budget")
    refused(kvtune("--resume", "tiny-1", "--model", "x"), 2, "--model", "begin a new one")


@pytest.mark.usefixtures("finished")
def test_reading_into_a_closed_pipe_is_no_error(tmp_path):
    env = {**os.environ, "KVTUNE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        f"{sys.executable} -m tuner.cli show | true", shell=True, env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
