from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.gpus import GpuProcess, GpuSample
from tui.cli import can_draw, main, run
from tui.once import as_text
from tui.panels.look import Look
from tui.record import Recorder

HOME = {"HOME": "/nonexistent"}
NOBODY = "http://127.0.0.1:9"
GIB = 2**30


class FixedGpus:
    """GPUs that always answer the same."""

    def __init__(self, *samples: GpuSample) -> None:
        self.samples = samples

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        del memory_only
        return self.samples

    def close(self) -> None: ...


def leaving(argv: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *samples: monkeypatch.setattr("tui.cli.open_gpus", lambda _: FixedGpus(*samples))


def test_nothing_could_be_read_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--once", "--json", "--no-gpu", "-u", NOBODY], HOME) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["servers"][0]["reach"] == "down"
    assert err.startswith(f"kvtop: {NOBODY} cannot be reached")


@pytest.mark.parametrize(
    "argv",
    [
        ["-u", "x"],
        ["-i", "SEC"],
        ["--config", "/nonexistent.toml"],
        ["--gpus", "amd"],
        ["--gpus", "simulated:/nonexistent"],
        ["--nonsense"],
        ["--demo", "-u", NOBODY],
        ["--demo", "--study", "x"],
        ["--demo", "--gpus", "nvml"],
        ["--demo", "--replay", "x"],
        ["--replay", "x", "-u", NOBODY],
    ],
)
def test_usage_errors_are_two_and_one_sentence(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert leaving([*argv, "--once"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], HOME) == 0
    assert capsys.readouterr().out.startswith("kvtop ")


def test_the_effective_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--show-config", "--api-key", "sk-1", "-u", "a:1"], HOME) == 0
    out = capsys.readouterr().out
    assert "urls = ('http://a:1',)" in out
    assert "sk-1" not in out


@pytest.mark.parametrize("term", ["dumb", "", "xterm-256color"])
def test_without_a_terminal_nothing_is_drawn(term: str) -> None:
    """Under pytest the standard streams are no terminals, whatever TERM says."""
    assert not can_draw({"TERM": term})


def test_not_a_terminal_means_one_look_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--no-gpu", "-u", NOBODY, "--ascii"], {**HOME, "TERM": "xterm"}) == 1
    out, err = capsys.readouterr()
    assert "what binds" in out
    assert out.isascii()
    assert "\x1b" not in out
    assert "no terminal to draw on" in err


def test_a_dumb_terminal_means_one_look_as_text() -> None:
    """In a real terminal, with TERM=dumb: not one escape code."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [sys.executable, "-m", "tui", "--no-gpu", "-u", NOBODY])
    written = b""
    while True:
        try:
            block = os.read(master, 4096)
        except OSError:
            break
        if not block:
            break
        written += block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert b"what binds" in written
    assert b"\x1b" not in written


def test_74_a_gpu_without_memory_figures(capsys: pytest.CaptureFixture[str], gpus: Callable[..., None]) -> None:
    gpus(GpuSample(0, "NVIDIA GB10", utilization_share=0.0, power_w=11.17, temperature_c=35.0))
    assert run(["--once", "--json", "-u", NOBODY], HOME) == 0
    (told,) = json.loads(capsys.readouterr().out)["gpus"]
    assert told["memory_total_bytes"] is None
    assert told["memory_parts"] is None
    assert told["power_w"] == 11.17
    assert run(["--once", "-u", NOBODY], HOME) == 0
    assert "memory not told by the driver" in capsys.readouterr().out


def test_a_diagnosis_of_a_dead_server_is_one(capsys: pytest.CaptureFixture[str], gpus: Callable[..., None]) -> None:
    """However well its GPUs can be read."""
    gpus(GpuSample(0, "NVIDIA GB10", utilization_share=0.0))
    assert run(["--diagnose", "--window", "0.1", "-u", NOBODY], HOME) == 1
    assert "[critical] down" in capsys.readouterr().out


def test_gpus_that_are_not_read_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--once", "--no-gpu", "-u", NOBODY], HOME)
    assert "GPUs are not read (--no-gpu)" in capsys.readouterr().out


def test_one_look_keeps_every_word_of_the_advice(feed: SimpleNamespace) -> None:
    snapshot = feed.watched(feed.ceiling)
    words = " ".join(as_text(snapshot, 60, Look(color=False, keys=False)).split())
    finding = snapshot.findings[0]
    for sentence in (finding.evidence, *finding.tries):
        assert sentence in words


def test_76_a_lost_gpu_keeps_its_place(capsys: pytest.CaptureFixture[str], gpus: Callable[..., None]) -> None:
    fine = [GpuSample(i, "RTX 3090", memory_total_bytes=24 * GIB, memory_used_bytes=2**21) for i in (0, 1, 3)]
    gpus(*fine[:2], GpuSample(2, "RTX 3090", lost=True), fine[2])
    assert run(["--once", "--json", "-u", NOBODY], HOME) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(told["index"], told["lost"]) for told in document["gpus"]] == [
        (0, False), (1, False), (2, True), (3, False),
    ]  # fmt: skip
    assert any(finding["rule"] == "gpu_lost" for finding in document["findings"])


def test_77_a_hosts_pid_is_nobody_here(capsys: pytest.CaptureFixture[str], gpus: Callable[..., None]) -> None:
    alien = GpuProcess(28290, 7000 * 2**20, None)
    gpus(GpuSample(0, "x", memory_total_bytes=24564 * 2**20, memory_used_bytes=7325 * 2**20, processes=(alien,)))
    assert run(["--once", "--json", "-u", NOBODY], HOME) == 0
    (told,) = json.loads(capsys.readouterr().out)["gpus"]
    assert told["memory_parts"]["unattributed_bytes"] == 7325 * 2**20
    assert told["processes"][0]["name"] is None


def test_a_recording_can_be_read_without_a_terminal(
    tmp_path: Path, feed: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, 1.0)
    for second in range(1000, 1030):
        recorder.write(feed.ceiling(float(second)))
    recorder.close()
    assert run(["--replay", str(path), "--diagnose"], HOME) == 0
    assert "[warning] KV ceiling" in capsys.readouterr().out
    assert run(["--replay", str(path), "--json"], HOME) == 0
    assert json.loads(capsys.readouterr().out)["servers"][0]["kv_capacity_tokens"] == 159_277


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m tui --once --no-gpu -u {NOBODY} 2>/dev/null | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["here", "missing", "no-such-id"])
def test_a_study_that_is_none_is_two_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "here").mkdir()
    asked = name if name == "no-such-id" else str(tmp_path / name)
    assert leaving(["--once", "--no-gpu", "-u", NOBODY, "--study", asked]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"kvtop: --study: {asked}: ")
    assert err.count("\n") == 1


def test_one_look_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.jsonl"
    assert run(["--once", "--json", "--no-gpu", "-u", NOBODY, "--record", str(path)], HOME) == 1
    assert run(["--once", "--json", "--replay", str(path)], HOME) == 0
    looked, replayed = map(json.loads, capsys.readouterr().out.splitlines())
    assert looked == replayed


def test_a_replay_is_not_recorded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leaving(["--replay", str(tmp_path / "a"), "--record", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith("kvtop: --record: ")


def test_nothing_is_claimed_of_a_server_that_never_answered(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--once", "--json", "--no-gpu", "-u", NOBODY], HOME)
    (server,) = json.loads(capsys.readouterr().out)["servers"]
    assert set(server["facts"].values()) == {None}
