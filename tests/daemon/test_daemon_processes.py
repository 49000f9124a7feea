"""The whole program with real processes, on the simulated engine in scaled time: kills, signals, detaching."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from launcher.process import read_table, token_of, user_name
from launcher.simulated.gpustate import Held, write_held
from tuner.journal import find_study, read_study
from tuner.journal.rows import read_fact
from tuner.journal.view import StudyState

ROOT = Path(__file__).parents[2]
STUDY = {
    "engine": "simulated",
    "preset": str(ROOT / "bench" / "chaos" / "small-box.yaml"),
    "clock_speed": 150,
    "sglang_version": "0.5.17",
    "space": {"mem-fraction-static": 0.7, "concurrency": 8},
    "workload": "random:in=100,out=100,cv=0.3",
    "budget": "30m",
    "max_trials": 1,
}


LONG = {**STUDY, "budget": "2h", "max_trials": 50, "until_gain_below": 0.0}
LONG["space"] = {"mem-fraction-static": [0.5, 0.8], "concurrency": [4, 16]}
"""Runs until it is stopped, however slow the machine is."""


class Program:
    """kvtune-auto with a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {**os.environ, "KVTUNE_HOME": str(directory / "home"), "PYTHONPATH": str(ROOT)}
        (directory / "study.yaml").write_text(yaml.safe_dump(STUDY))
        (directory / "long.yaml").write_text(yaml.safe_dump(LONG))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tuner.cli", *arguments]
        return subprocess.Popen(
            words, cwd=self.directory, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.begin(*arguments)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    def view(self):
        return read_study(find_study(None))

    def wait_for(self, stage: str, process: subprocess.Popen[str] | None = None) -> None:
        """Until the daemon is at that stage."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            if process is not None and process.poll() is not None:
                raise AssertionError(process.communicate())
            if list((self.directory / "home").glob("studies/*/journal.sqlite3")):
                now = self.view().stage
                if now is not None and now.name.startswith(stage):
                    return
            time.sleep(0.02)
        raise AssertionError(f"never came to {stage}")

    def servers(self) -> list[int]:
        """Living processes of the newest study's servers."""
        import sqlite3

        connection = sqlite3.connect(find_study(None) / "journal.sqlite3")
        connection.row_factory = sqlite3.Row
        token = read_fact(connection, "token")
        connection.close()
        return [one.pid for one in read_table().values() if not one.zombie and token_of(one.pid) == token]


def eventually(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return holds()


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path / "home"))
    made = Program(tmp_path)
    yield made
    for pid in made.servers():
        os.kill(pid, signal.SIGKILL)


def test_a_killed_daemon_leaves_an_orphan_that_the_next_one_ends_before_it_goes_on(program):
    daemon = program.begin("--config", "study.yaml", "--then", "touch before-is-back")
    program.wait_for("measuring", daemon)
    daemon.kill()
    daemon.communicate()
    orphans = program.servers()
    assert orphans
    assert program.view().state is StudyState.INTERRUPTED

    code, out, err = program.run("--resume", find_study(None).name)
    assert code == 0, err
    assert "a server of" not in out
    assert "1 server of an earlier run was ended" in err
    assert "started 'touch before-is-back'" in err, "what is to happen at the end outlives who was told"
    assert eventually((program.directory / "before-is-back").exists)
    assert program.servers() == []
    view = program.view()
    assert view.state is StudyState.DONE
    assert [level.concurrency for level in view.trials[0].levels] == [8]
    assert yaml.safe_load((program.directory / "best-config.yaml").read_text())["mem-fraction-static"] == 0.7
    assert_the_exported_command_starts(program)


def assert_the_exported_command_starts(program: Program) -> None:
    """What `export --format command` prints is run as it is, by a shell."""
    command = program.run("export", "--format", "command")[1].rstrip() + " --speed 200\n"
    words = ["sh", "-c", command]
    with subprocess.Popen(words, env=program.env, stderr=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stderr is not None
        said = ""
        while "fired up" not in said and (line := server.stderr.readline()):
            said += line
        os.killpg(server.pid, signal.SIGKILL)
    assert "fired up" in said


def test_a_detached_daemon_is_watched_paused_resumed_and_stopped(program):
    code, out, err = program.run("--config", "long.yaml", "--detach")
    assert code == 0, err
    name = out.strip()
    program.wait_for("measuring")
    code, out, _ = program.run("--resume", name)
    assert code == 2
    status = json.loads(program.run("status", "--json")[1])
    assert status["state"] == "running"
    assert program.run("pause")[0] == 0
    program.wait_for("paused")
    assert program.servers() == []
    assert program.view().state is StudyState.PAUSED
    assert program.run("stop", name)[0] == 0
    view = program.view()
    assert view.state is StudyState.INTERRUPTED
    assert program.servers() == []


def test_log_json_is_json_and_sigterm_finishes_the_level(program):
    daemon = program.begin("--config", "long.yaml", "--log-json", "--then", "touch before-is-back")
    program.wait_for("measuring", daemon)
    daemon.terminate()
    out, err = daemon.communicate(timeout=60)
    assert daemon.returncode == 130, err
    events = [json.loads(line) for line in out.splitlines()]
    assert {"study", "stage", "decision", "best"} <= {event["event"] for event in events}
    assert [event["kind"] for event in events if event["event"] == "decision"].count("level") == 1
    assert program.servers() == []
    assert (program.directory / "best-config.evidence.yaml").is_file()
    assert "started 'touch before-is-back'" in err
    assert eventually((program.directory / "before-is-back").exists)


def small_box(directory: Path, fault: str | None = None) -> str:
    """The chaos bench's box under a name of its own, with something wrong with it."""
    box = yaml.safe_load((ROOT / "bench" / "chaos" / "small-box.yaml").read_text())
    path = directory / "box.yaml"
    path.write_text(yaml.safe_dump({**box, "name": "box", "faults": [fault] if fault else []}))
    return str(path)


def test_a_server_that_stays_stuck_is_a_hang_and_never_a_rate(program):
    stuck = {**STUDY, "preset": small_box(program.directory, "stuck:10"), "budget": "2h", "max_trials": 1}
    (program.directory / "stuck.yaml").write_text(yaml.safe_dump(stuck))
    code, out, err = program.run("--config", "stuck.yaml")
    assert code == 1, err
    assert "nothing could be measured: at concurrency 8" in err
    assert "tokens/s" not in out + err
    assert err.count("at concurrency 8 nothing was finished any more, though the server's process lived") >= 3
    assert program.servers() == []
    assert not (program.directory / "best-config.yaml").exists()


def test_memory_that_a_stranger_takes_is_waited_for_with_his_name(program):
    quick = {**LONG, "space": {"mem-fraction-static": [0.5, 0.8], "concurrency": 8}}
    (program.directory / "study.yaml").write_text(yaml.safe_dump(quick))
    daemon = program.begin("--config", "study.yaml")
    program.wait_for("measuring", daemon)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        started_s = psutil.Process(stranger.pid).create_time()
        held = Held(0, stranger.pid, started_s, "trainer", 20 * 2**30, busy_share=0.0, release_wall_s=0.0)
        write_held(find_study(None) / "gpus", held)
        program.wait_for("paused: GPU 0", daemon)
        told = program.view().stage.name
        daemon.terminate()
        _, err = daemon.communicate(timeout=60)
        stranger.kill()
    assert f"pid {stranger.pid} (sleep, user {user_name(os.getuid())}) holds 20.0 GiB" in told
    assert daemon.returncode == 130, err
    assert program.servers() == []
