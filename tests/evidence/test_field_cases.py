"""Every field case, by kind, on its inputs: what `make cases` runs; and that it can disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cases.__main__ import JUDGES, main, run
from bench.cases.case import load_cases, same


@pytest.mark.parametrize("kind", sorted(JUDGES))
def test_the_shared_cases_of_a_kind(shared: Path, kind: str) -> None:
    cases = [case for case in load_cases(shared / "cases") if case.kind == kind]
    assert cases
    wrong = [(case.name, check) for case in cases for check in run(case).checks if not check.agrees]
    assert wrong == []
    assert all(run(case).checks for case in cases)


def _write(directory: Path, kind: str, expect: dict[str, object], **inputs: str) -> Path:
    directory.mkdir(parents=True)
    about = {"kind": kind, "inputs": list(inputs), "expect": expect}
    if kind == "failure_log":
        about["check"] = expect
    (directory / "case.json").write_text(json.dumps(about))
    for name, text in inputs.items():
        (directory / name).write_text(text)
    return directory


DECODE = "[2026-05-04 10:00:00 TP0] Decode batch, #running-req: 7, #token: 512, token usage: 0.05, #queue-req: 2\n"

WRONG = [
    ("failure_log", {"a.log": {"is_failure": True}}, {"a.log": DECODE}),
    ("failure_log", {"a.log": {"failure_class_not": ["none"]}}, {"a.log": DECODE}),
    ("log_lines", {"decode": {"running_req": 8}}, {"a.log": DECODE}),
    ("log_lines", {"no_such_figure": 8}, {"a.log": DECODE}),
    ("metrics", {"running": 4}, {"metrics.txt": "sglang:num_running_reqs 3\n"}),
    ("metrics", {"missing": ["sglang:num_running_reqs"]}, {"metrics.txt": "sglang:num_running_reqs 3\n"}),
    ("endpoint", {"hint": "--no-such-hint"}, {"responses.json": '{"GET /metrics": 404}'}),
    ("server_info", {"version": "0.5.6"}, {"a.json": '{"version": "0.5.17", "tp_size": 1}'}),
    ("process", {"kill": [7]}, {"procs.json": '[{"pid": 7, "ppid": 1, "pgid": 7}]', "ours.json": "{}"}),
    ("yaml", {"argv": ["--model-path", "/m/y"]}, {"config.yaml": "model-path: /m/x\n"}),
    ("nvml", {"rows_ok": [0]}, {"nvml.json": '{"devices": [{"error": "GPU is lost"}]}'}),
    ("no_such_kind", {"x": 1}, {"a.log": ""}),
    ("metrics", {}, {"metrics.txt": "sglang:num_running_reqs 3\n"}),
]


@pytest.mark.parametrize(("kind", "expect", "inputs"), WRONG)
def test_a_wrong_expectation_is_a_disagreement(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    expect: dict[str, object],
    inputs: dict[str, str],
) -> None:
    _write(tmp_path / "cases" / "01-wrong", kind, expect, **inputs)
    assert main([str(tmp_path / "cases")]) == 1
    assert "figure cases_agree_share 0 share" in capsys.readouterr().out


def test_an_unseen_directory_that_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = tmp_path / "cases"
    _write(cases / "01-a", "log_lines", {"decode": {"running_req": 7, "rank": "TP0", "accept_len": None}}, a=DECODE)
    _write(cases / "02-b", "failure_log", {"a": {"failure_class": ["none", "unknown"], "is_gpu_oom": False}}, a=DECODE)
    assert main([str(cases)]) == 0
    assert "2 of 2 cases agree" in capsys.readouterr().out


def test_an_empty_directory_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "case.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [(192.2, 192.245, True), (192.2, 192.28, False), (0.2125, 0.2125, True), (5, 5.0, True), (5, 6, False),
     (None, 0, False), (None, None, True), ([1, 2], (1, 2), True), ([1, 2], (1,), False), ("a", "a", True)],
)  # fmt: skip
def test_figures_agree_to_the_digits_that_are_expected(expected: object, got: object, agrees: bool) -> None:
    assert same(expected, got) is agrees
