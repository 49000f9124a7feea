"""`make captures`: every log of a directory with its timeline, capacity and outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.captures import main


def test_the_shared_captures(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(shared / "captures")]) == 0
    said = capsys.readouterr().out
    assert "figure captures_read 19 logs" in said
    (row,) = [line for line in said.splitlines() if line.startswith("h200-sglang-0.5.17/qfp8.log  ")]
    assert {"468577", "fp8_e4m3", "139.13", "61.04", "19.68"} <= set(row.split())
    outcomes = dict(line.split(": ", 1) for line in said.splitlines() if ".log: " in line)
    assert outcomes["h200-sglang-0.5.17/q85.log"] == "served"
    assert outcomes["h200-sglang-0.5.17/oom0.98.log"].startswith("gpu_oom_runtime at first_prefill, mem-fraction down")
    assert outcomes["h200-sglang-0.5.17/q0.40.log"].startswith("gpu_oom_startup_kv at kv_pool, mem-fraction up")
    assert outcomes["h200-sglang-0.5.17/hostoom.log"].startswith("host_oom_hicache at host_pool")
    assert outcomes["cpu-sglang-0.5.18/fail_unknown_flag.log"].startswith("config_error at launch")


def test_a_directory_without_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no *.log" in capsys.readouterr().err
