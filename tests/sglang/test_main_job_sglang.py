"""The main job on the real thing: tune a real SGLang, then start it from the answer and watch it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from launcher.ports import free_port
from tuner.journal import StudyView, find_study, read_study
from tuner.journal.view import StudyState
from tuner.trial import TrialState

pytestmark = pytest.mark.sglang

STUDY = """
model: {model}
command: {python} -m sglang.launch_server
env: {env}
flags: {flags}
space: {space}
workload: random:in=48,out=32,cv=0.4
"""
START_S = 240.0


def study_file(cpu_sglang: Any, directory: Path, space: dict[str, object]) -> Path:
    path = directory / "study.yaml"
    flags = {name: value for name, value in cpu_sglang.flags.items() if name not in space}
    path.write_text(
        STUDY.format(
            model=cpu_sglang.model_path,
            python=cpu_sglang.python,
            env=json.dumps(cpu_sglang.env),
            flags=json.dumps(flags),
            space=json.dumps(space),
        )
    )
    return path


def tune(study: Path, budget: str, *further: str) -> subprocess.CompletedProcess[str]:
    words = ["--config", str(study), "--budget", budget, "--output", str(study.parent / "best-config.yaml"), *further]
    return kvtune(study.parent, *words)


def kvtune(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """kvtune-auto with a home of its own, to its end."""
    env = {**os.environ, "KVTUNE_HOME": str(directory / "home")}
    command = [sys.executable, "-m", "tuner.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)


def servers_of(directory: Path) -> list[int]:
    """Processes whose environment names a study of this test."""
    token = str(directory / "home")
    return [process.pid for process in psutil.process_iter() if token in _home(process) and process.pid != os.getpid()]


def _home(process: psutil.Process) -> str:
    try:
        return process.environ().get("KVTUNE_HOME", "")
    except psutil.Error:
        return ""


@contextmanager
def started_from(config: Path, cpu_sglang: Any, directory: Path) -> Iterator[str]:
    """SGLang, started by hand with the answer, as its user would."""
    port = free_port()
    words = [*cpu_sglang.command, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with open(directory / "by-hand.log", "wb") as log:
        server = subprocess.Popen(words, env={**os.environ, **cpu_sglang.env}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while b"fired up" not in (directory / "by-hand.log").read_bytes():
            assert server.poll() is None, (directory / "by-hand.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "it did not start"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def test_a_real_server_is_tuned_and_starts_from_the_answer(cpu_sglang: Any, tmp_path: Path) -> None:
    space = {"mem-fraction-static": 0.05, "max-total-tokens": [1024, 4096], "concurrency": [2, 8]}
    done = tune(study_file(cpu_sglang, tmp_path, space), "10m", "--max-trials", "2")
    assert done.returncode == 0, done.stderr
    config = tmp_path / "best-config.yaml"
    answer = yaml.safe_load(config.read_text())
    evidence = yaml.safe_load((tmp_path / "best-config.evidence.yaml").read_text())
    assert evidence["client_concurrency"] in range(2, 9)
    assert evidence["simulated"] is False
    assert servers_of(tmp_path) == []
    with started_from(config, cpu_sglang, tmp_path) as url:
        assert_runs_with(url, answer)
        shown = look(url)
    (server,) = shown["servers"]
    assert shown["schema_version"] == 1
    assert server["reach"] == "up"
    assert server["kv_capacity_tokens"] == answer["max-total-tokens"]
    assert server["host_capacity_tokens"] is None


def assert_runs_with(url: str, answer: dict[str, Any]) -> None:
    """The server itself gives every exported value back."""
    told = httpx.get(f"{url}/server_info", timeout=30).json()
    for name, value in answer.items():
        assert told[name.replace("-", "_")] == value, name
    assert told["max_total_num_tokens"] == answer["max-total-tokens"]


def look(url: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "tui", "--url", url, "--once", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_a_fraction_below_the_weights_is_a_result_and_not_a_crash(cpu_sglang: Any, tmp_path: Path) -> None:
    space = {"mem-fraction-static": 0.0001, "max-total-tokens": None, "concurrency": 2}
    path = study_file(cpu_sglang, tmp_path, space)
    path.write_text(path.read_text().replace(', "max-total-tokens": null', ""))
    done = tune(path, "10m", "--max-trials", "1")
    assert done.returncode == 3, done.stderr
    assert "mem-fraction-static" in done.stderr + done.stdout
    assert servers_of(tmp_path) == []


def kill_in(directory: Path, reached: Callable[[StudyView], bool], *words: str) -> StudyView:
    """Run kvtune-auto until the study has come so far, and kill -9 it there; what it left."""
    env = {**os.environ, "KVTUNE_HOME": str(directory / "home")}
    with open(directory / "killed.log", "ab") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "tuner.cli", *words], env=env, stdout=log, stderr=log)
    deadline = time.monotonic() + 2 * START_S
    try:
        while not (list(directory.glob("home/studies/*/journal.sqlite3")) and reached(read_study(find_study(None)))):
            assert daemon.poll() is None, (directory / "killed.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.02)
    finally:
        daemon.kill()
        daemon.wait()
    return read_study(find_study(None))


def in_stage(name: str, trial_id: int, for_s: float = 0.0) -> Callable[[StudyView], bool]:
    def reached(view: StudyView) -> bool:
        now = view.stage
        if now is None or now.name != name or now.trial_id != trial_id:
            return False
        return now.since_unix_s is not None and time.time() - now.since_unix_s >= for_s

    return reached


def after_trial_1(view: StudyView) -> bool:
    return bool(view.trials) and view.trials[0].state is not TrialState.RUNNING


def levels_of(view: StudyView) -> list[Any]:
    return [level for trial in view.trials for level in trial.levels]


def test_three_kills_then_resume_and_the_export_starts(
    cpu_sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 in a start, in a level and between two trials: nothing finished is lost and nothing is left behind."""
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path / "home"))
    space = {"mem-fraction-static": 0.05, "max-total-tokens": [1024, 4096], "concurrency": [2, 4]}
    config, study = tmp_path / "best-config.yaml", str(study_file(cpu_sglang, tmp_path, space))
    begin = ("--config", study, "--budget", "12m", "--max-trials", "2", "--output", str(config))
    killed_at_start = kill_in(tmp_path, in_stage("starting", 1, for_s=6), *begin)
    assert killed_at_start.state is StudyState.INTERRUPTED
    resume = ("--resume", killed_at_start.study_id)
    assert servers_of(tmp_path) != []
    killed_at_level = kill_in(tmp_path, in_stage("measuring", 1, for_s=4), *resume)
    assert servers_of(tmp_path) != []
    killed_between = kill_in(tmp_path, after_trial_1, *resume)
    assert [len(trial.levels) for trial in killed_between.trials[1:]] in ([], [0])

    done = kvtune(tmp_path, *resume, "--serve-best")
    assert done.returncode == 0, done.stderr
    served = re.search(r"the answer serves at (http://\S+) ", done.stderr)
    assert served is not None, done.stderr
    assert_runs_with(served[1], yaml.safe_load(config.read_text()))
    assert kvtune(tmp_path, "stop", killed_at_start.study_id).returncode == 0
    assert servers_of(tmp_path) == []
    view = read_study(find_study(None))
    assert [trial.trial_id for trial in view.trials] == [1, 2]
    assert view.trials[0].proposal == killed_at_start.trials[0].proposal
    assert levels_of(killed_at_level) == levels_of(view)[: len(levels_of(killed_at_level))]
    assert levels_of(killed_between) == levels_of(view)[: len(levels_of(killed_between))]
    assert len({level.concurrency for level in view.trials[0].levels}) == len(view.trials[0].levels)
    with started_from(config, cpu_sglang, tmp_path) as url:
        assert_runs_with(url, yaml.safe_load(config.read_text()))
