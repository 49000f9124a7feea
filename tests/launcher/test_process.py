"""Whose a process is: by pid and start time, by session, by token, by descent; strangers never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.process import (
    Process,
    ProcessId,
    describe,
    find_family,
    is_gone,
    read_process,
    read_table,
    send_signal,
    token_of,
)

ROOT = ProcessId(100, 50.0)


def process(pid: int, start: float = 60.0, parent: int = 1, group: int = 1, name: str = "x") -> Process:
    return Process(pid, start, parent, group, group, name)


def family(*processes: Process, tokens: dict[int, str | None], recorded: tuple[ProcessId, ...] = ()) -> set[int]:
    table = {one.pid: one for one in processes}
    found = find_family(table, ROOT, ROOT.pid, "ours", recorded, read_token=lambda pid: tokens.get(pid, ""))
    return {one.pid for one in found}


def test_root_session_descendants_and_token_carriers_are_ours() -> None:
    found = family(
        process(100, 50.0, group=100),
        process(101, group=100),
        process(102, parent=101, group=102),
        process(103, group=103),
        process(104, group=104),
        tokens={101: "ours", 103: "ours", 104: "another study's"},
    )
    assert found == {100, 101, 102, 103}


def test_numbers_that_are_used_again_are_not_ours() -> None:
    reused_root = process(100, 70.0, group=100)
    reused_child = process(101, 80.0, group=100)
    assert family(reused_root, reused_child, tokens={101: None}, recorded=(ProcessId(101, 60.0),)) == set()


def test_a_member_of_the_session_whose_environment_is_overwritten_is_ours() -> None:
    assert family(process(101, group=100, name="sglang::schedul"), tokens={101: None}) == {101}


def test_nothing_older_than_the_launch_is_ours() -> None:
    assert family(process(99, 40.0, group=100), tokens={99: None}) == set()


@given(st.lists(st.tuples(st.integers(2, 40), st.integers(1, 40), st.integers(1, 40)), unique_by=lambda row: row[0]))
def test_without_a_tie_to_the_launch_nobody_is_touched(rows: list[tuple[int, int, int]]) -> None:
    strangers = [process(pid, parent=parent, group=group) for pid, parent, group in rows]
    assert family(*strangers, tokens={}) == set()


def test_leftover_schedulers_are_ours_by_their_group_and_a_strangers_are_not(shared: Path) -> None:
    """Field case 79: workers that a dead launcher left to pid 1, beside another user's live server."""
    folder = shared / "cases" / "79-proc-zombie-schedulers-ppid1"
    rows = json.loads((folder / "procs.json").read_text())
    (pgid,) = json.loads((folder / "ours.json").read_text())["launched_pgids"]
    expect = json.loads((folder / "case.json").read_text())["expect"]
    table = {r["pid"]: Process(r["pid"], 60.0, r["ppid"], r["pgid"], r["pgid"], r["name"]) for r in rows}
    found = find_family(table, ProcessId(pgid, 50.0), pgid, "ours", read_token=lambda _: None)
    assert sorted(one.pid for one in found) == expect["kill"]
    assert not {one.pid for one in found} & set(expect["must_not_kill"])


def test_an_orphan_beside_a_desktop_is_ours_only_if_we_launched_it(shared: Path) -> None:
    """Field case 80."""
    folder = shared / "cases" / "80-proc-orphan-with-desktop"
    rows = json.loads((folder / "procs.json").read_text())
    expect = json.loads((folder / "case.json").read_text())["expect"]
    table = {row["pid"]: process(row["pid"], group=row["pid"], name=row["name"]) for row in rows}
    tokens = dict.fromkeys(expect["kill_candidates"], "ours")
    launched = find_family(table, ROOT, ROOT.pid, "ours", read_token=lambda pid: tokens.get(pid, ""))
    assert [one.pid for one in launched] == expect["kill_candidates"]
    assert find_family(table, ROOT, ROOT.pid, "ours", read_token=lambda _: "") == ()


@pytest.mark.parametrize("name", ["sh", "a) R 1 (b", "sglang::schedul", "two words"])
def test_stat_is_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "7").mkdir()
    fields = ["Z", "3", "4", "5", *["0"] * 15, "1234", *["0"] * 10]
    (tmp_path / "7" / "stat").write_text(f"7 ({name}) {' '.join(fields)}\n")
    found = read_process(7, tmp_path)
    assert found == Process(7, 1234 / os.sysconf("SC_CLK_TCK"), 3, 4, 5, name, zombie=True)
    assert read_process(8, tmp_path) is None
    assert read_table(tmp_path) == {7: found}


def test_a_zombie_is_gone_only_when_its_threads_are(tmp_path: Path) -> None:
    fields = ["Z", "3", "4", "5", *["0"] * 15, "1234", *["0"] * 10]
    for task in ("7", "8"):
        (tmp_path / "7" / "task" / task).mkdir(parents=True)
    (tmp_path / "7" / "stat").write_text(f"7 (x) {' '.join(fields)}\n")
    started = ProcessId(7, 1234 / os.sysconf("SC_CLK_TCK"))
    assert not is_gone(started, tmp_path)
    (tmp_path / "7" / "task" / "8").rmdir()
    assert is_gone(started, tmp_path)


def test_tokens_in_environments(tmp_path: Path) -> None:
    environs = (b"A=1\0KVTUNE_TOKEN=abc\0", b"A=1\0", b"sglang::scheduler_TP0\0\0\0", b"")
    for pid, environ in enumerate(environs):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(environ)
    assert [token_of(pid, tmp_path) for pid in range(5)] == ["abc", "", None, "", None]


def test_a_signal_reaches_exactly_the_process_that_is_meant() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    found = read_process(child.pid)
    assert found is not None
    assert not send_signal(ProcessId(child.pid, found.start_time + 1), signal.SIGKILL)
    assert child.poll() is None
    assert send_signal(found.id, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not send_signal(found.id, signal.SIGKILL)


def test_a_process_is_described_by_title_and_user() -> None:
    assert describe(os.getpid()).startswith(f"pid {os.getpid()} (python")
    assert "unknown here" in describe(2**22 - 1)
